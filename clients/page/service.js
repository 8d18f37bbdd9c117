// Requests to the service of this device.

const PATIENCE = 40000; // milliseconds; the service waits up to 30 seconds for a locked store

class WrongToken extends Error {}
class Unreachable extends Error {}

/** Remove the token from the address bar, where it could be copied or photographed by accident. */
function takeToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found) {
    sessionStorage.setItem("token", found);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token");
}

/** Send one request, and return the status and the JSON of its reply. */
async function ask(path, method = "GET", body) {
  const token = sessionStorage.getItem("token");
  if (!token) throw new WrongToken();
  const headers = { Authorization: `Bearer ${token}`, ...(body && { "Content-Type": "application/json" }) };
  let response, data;
  try {
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal: AbortSignal.timeout(PATIENCE) });
    data = response.status === 204 ? null : await response.json();
  } catch {
    throw new Unreachable("The service does not answer");
  }
  if (response.status === 401) throw new WrongToken();
  if (response.status >= 500) throw new Unreachable(data.detail);
  return { status: response.status, data };
}

/** Repeat a request until the service replies. All requests of this page may be repeated. */
async function insist(...request) {
  for (let gone = false; ; gone = true) {
    try {
      const reply = await ask(...request);
      if (gone) say();
      return reply;
    } catch (error) {
      if (!(error instanceof Unreachable)) throw error;
      const step = request[1] === "DELETE" ? "Your last step" : "Your answer";
      say(error.message, request.length > 1
        ? `${step} is kept in this page and sent again every few seconds until the service has stored it.`
        : "No answer is lost. This page tries again every few seconds.");
      await sleep(POLL);
    }
  }
}
