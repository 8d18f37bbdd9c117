"""Tests of the page for answering duels, in a real browser."""

from __future__ import annotations

import contextlib
import re
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import uvicorn
from browsers import (  # noqa: F401 - two of them are fixtures
    browser,
    chrome,
    contrast,
    count,
    emulate,
    find,
    keys,
    messages,
    texts,
    violations,
)
from test_service import TOKEN, TRAINS, recorded
from vaults import configure

from clients.preference_agent import PreferenceAgent
from clients.service.app import Node, create_app
from clients.service.catalogue import read_arms
from clients.store import Synchronization
from clients.vault import read_config
from fldb_flower.deployment.processes import free_port

PHONE = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
PICTURE = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' width='40' height='30'/%3E"


class Device:
    """A store and its service, which runs in a thread and can be restarted."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.path = folder / "duels.db"
        self.options = options
        self.agent = PreferenceAgent(self.path)
        self.port = free_port()  # not an ephemeral one, which others may take meanwhile
        self.start()

    def start(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        app = create_app(self.path, TOKEN, **self.options)
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(100)

    def url(self, token: str = TOKEN) -> str:
        return f"http://127.0.0.1:{self.port}/#token={token}"

    def propose(self, first: Any = "one", second: Any = "other") -> str:
        """Propose a duel; the first arm is `first`, because the agent is untrained."""
        contents = [{"text": arm} if isinstance(arm, str) else arm for arm in (first, second)]
        return self.agent.propose([[0.0, 0.0], [1.0, 0.0]], ["k1", "k2"], contents).id


@pytest.fixture
def start(tmp_path):
    """Start devices; stop them at the end."""
    begun: list[Device] = []

    def begin(**options: Any) -> Device:
        begun.append(Device(tmp_path, **options))
        return begun[-1]

    yield begin
    for device in begun:
        device.stop()
        device.agent.close()


@pytest.fixture
def page(browser):  # noqa: F811 - the fixture
    """Return the browser; restore Math.random at the end."""
    drawn: list[str] = []

    def draw(value: float) -> None:
        source = {"source": f"Math.random = () => {value}"}
        reply = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", source)
        drawn.append(reply["identifier"])

    browser.draw = draw
    yield browser
    for identifier in drawn:
        script = {"identifier": identifier}
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
    emulate(browser, "prefers-reduced-motion", "no-preference")


def wait(condition: Callable[[], Any], seconds: float = 100.0) -> Any:
    """Wait until a condition holds; return its value."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "timeout"
        time.sleep(0.03)
    return found


def cards(page) -> list[str]:
    """Return the texts of the two cards from left to right, or none without a duel."""
    return texts(page, "#duel:not([hidden]) .text")


def wait_for_duel(page, *expected: str) -> list[str]:
    """Wait for a duel with these texts, in either order; return them as displayed."""
    wait(lambda: sorted(cards(page)) == sorted(expected))
    wait_until_ready(page)
    return cards(page)


def wait_until_ready(page) -> None:
    """Wait until the page accepts an answer, half a second after it has shown a duel."""
    wait(lambda: page.execute_script("return choose !== null && !byId('duel').hidden"))


def opened(page, start, *pairs: str) -> tuple[Device, list[str]]:
    """Propose duels of arms that are single letters, and open the page at the first."""
    device = start()
    duels = [device.propose(*pair) for pair in pairs]
    page.get(device.url())
    wait_for_duel(page, *pairs[0])
    return device, duels


def wait_for_notice(page, text: str) -> None:
    wait(lambda: text in " ".join(texts(page, "#notice:not([hidden]) *")))


def wait_for_answered(page, number: int) -> None:
    wait(lambda: texts(page, "#answered") == [str(number)])


def console_messages(page) -> list[Any]:
    """Return the console messages, except the HTTP statuses that the browser logs itself."""
    return [entry for entry in page.get_log("browser") if entry["source"] != "network"]


def press(page, side: str) -> None:
    from selenium.webdriver import Keys

    arrows = {"left": Keys.ARROW_LEFT, "right": Keys.ARROW_RIGHT, "tie": Keys.ARROW_DOWN}
    keys(page, {**arrows, "skip": Keys.ARROW_UP, "undo": Keys.BACKSPACE}[side])


def click(page, side: str) -> None:
    find(page, f"#{side}").click()


# ---- Answering


@pytest.mark.parametrize(("give", "lot"), [(press, 0.1), (press, 0.9), (click, 0.1)])
def test_left_and_right_are_mapped_to_first_and_second(give, lot, page, start):
    device = start()
    duels = {side: device.propose("the first", "the second") for side in ("left", "right", "tie")}
    page.draw(lot)
    page.get(device.url())
    expected, orders = {}, []
    for number, (side, duel) in enumerate(duels.items(), 1):
        left, right = wait_for_duel(page, "the first", "the second")
        orders.append((left, right))
        give(page, side)
        wait_for_answered(page, number)
        winner = {"left": left, "right": right, "tie": None}[side]
        expected[duel] = (number, {"the first": 1.0, "the second": 0.0, None: 0.5}[winner])
    assert set(orders) == {
        ("the first", "the second") if lot > 0.5 else ("the second", "the first")
    }
    assert recorded(device.path) == expected
    wait_for_notice(page, "Nothing to answer now")
    assert cards(page) == []
    assert console_messages(page) == []


def test_the_order_of_each_duel_is_random(page, start):
    opened(page, start, "ab")
    orders = set()
    for _ in range(40):  # the same side 40 times: 1 in 10^12
        wait(lambda: len(cards(page)) == 2)
        orders.add(cards(page)[0])
        if len(orders) == 2:
            break
        page.refresh()
    assert orders == {"a", "b"}
    script = """return [...Array(4000).keys()]
      .filter((id) => placed({id: String(id), first: 1})[0]).length"""
    assert abs(page.execute_script(script) - 2000) < 5 * 31.6  # five standard deviations
    script = """const duel = {id: "a", first: 1, second: 2}; const [left] = placed(duel);
      return ["a", "a~", "a~~"].every((id) => placed({...duel, id})[0] === left)"""
    assert page.execute_script(script)


def twice_a_key(page, side="left"):
    """Press the left key 0.2 s after the next duel is shown, by the clock of the page."""
    page.execute_script("""
      const event = new KeyboardEvent("keydown", { key: "ArrowLeft" });
      const again = () => document.dispatchEvent(event);
      const pair = document.querySelector(".pair");
      const shown = new MutationObserver(() => { shown.disconnect(); setTimeout(again, 200); });
      shown.observe(pair, { attributes: true, attributeFilter: ["class"] })""")
    press(page, side)


def a_double_click(page):
    from selenium.webdriver import ActionChains

    ActionChains(page).double_click(find(page, "#left")).perform()


def held(page, kind: str, key: str, code: int, **more: str) -> None:
    """Hold a key down for most of a second."""
    event = {"type": kind, "key": key, "windowsVirtualKeyCode": code, **more}
    for number in range(28):
        page.execute_cdp_cmd("Input.dispatchKeyEvent", event | {"autoRepeat": number > 0})
        time.sleep(0.03)
    page.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyUp", "key": key})


def a_key_held(page):
    held(page, "rawKeyDown", "ArrowLeft", 37)


def enter_held(page):
    find(page, "#left").send_keys("")  # moves the focus
    held(page, "keyDown", "Enter", 13, text="\r")


@pytest.mark.parametrize("act", [twice_a_key, a_double_click, a_key_held, enter_held])
def test_one_press_answers_one_duel(act, page, start):
    device, duels = opened(page, start, "ab", "cd", "ef")
    act(page)
    wait_for_duel(page, "c", "d")
    time.sleep(0.3)
    assert recorded(device.path).keys() == {duels[0]}
    press(page, "tie")
    wait_for_duel(page, "e", "f")


EARLY = {
    "loading": "A press was ignored: the next pair was not shown yet.",
    "saving": "A press was ignored: your last answer was still being saved.",
    "appeared": "A press was ignored: the pair had only just appeared.",
}


@pytest.mark.parametrize("phase", EARLY)
def test_a_press_that_is_too_early_is_acknowledged_and_not_counted(phase, page, start):
    """Replies are delayed in the page until the key was pressed."""
    device = start()
    first, _ = device.propose("a", "b"), device.propose("c", "d")
    delay = """const wait = fetch; let release; window.held = new Promise((done) => release = done);
      window.go = release;
      window.fetch = async (path, ...rest) => {
        if (window.slow?.test(path)) await window.held;
        return wait(path, ...rest); };"""
    slow = {"loading": "/next/", "saving": "/answer/"}.get(phase)
    page.draw(f"0.9; {delay} window.slow = {slow or 'null'}")
    page.get(device.url())
    if phase != "loading":
        wait_for_duel(page, "a", "b")
        (twice_a_key if phase == "appeared" else press)(page, "left")
    if phase != "appeared":
        press(page, "right")
    wait(lambda: texts(page, "#note") == [EARLY[phase]])
    live = find(page, "[role=status]").get_attribute("textContent")
    assert EARLY[phase] in live
    assert ("A: c. B: d." in live) == (phase == "appeared")
    assert recorded(device.path) == ({first: (1, 1.0)} if phase == "appeared" else {})
    page.execute_script("window.go()")
    shown = wait_for_duel(page, *("ab" if phase == "loading" else "cd"))
    assert find(page, "#note").is_displayed()
    assert texts(page, "#note") == [EARLY[phase]]
    live = find(page, "[role=status]").get_attribute("textContent")
    assert EARLY[phase] in live
    assert live.endswith(f"A: {shown[0]}. B: {shown[1]}.")
    answered = len(recorded(device.path))
    press(page, "right")
    wait_for_answered(page, answered + 1)
    assert [y for _, y in recorded(device.path).values()] == [1.0] * answered + [0.0]
    wait(lambda: texts(page, "#note") == [""])


def test_no_answer_is_taken_while_a_picture_is_loading(page, start):
    """The picture's host accepts connections, and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as host:
        device = start()
        picture = f"https://127.0.0.1:{host.getsockname()[1]}/"
        page.draw("0.9")
        page.get(device.url())
        wait_for_notice(page, "Nothing to answer now")
        duel = device.propose({"image": picture}, "b")
        wait(lambda: cards(page) == ["", "b"])
        time.sleep(1.0)
        press(page, "left")
        wait(lambda: texts(page, "#note") == [EARLY["appeared"]])
        assert recorded(device.path) == {}
        wait_until_ready(page)  # after ten seconds
        assert cards(page) == ["k1 (cannot be shown)", "b"]
        press(page, "left")
        wait_for_answered(page, 1)
        assert recorded(device.path) == {duel: (1, 1.0)}


def test_browser_shortcuts_do_not_answer_and_tab_and_enter_do(page, start):
    from selenium.webdriver import ActionChains, Keys

    device, (duel, _) = opened(page, start, "ab", "cd")
    for modifier in (Keys.CONTROL, Keys.SHIFT):
        chain = ActionChains(page).key_down(modifier).send_keys(Keys.ARROW_RIGHT)
        chain.key_up(modifier).perform()
    keys(page, Keys.BACKSPACE, Keys.ESCAPE, "x", " ")  # there is nothing to undo
    time.sleep(0.3)
    assert recorded(device.path) == {}
    assert cards(page)
    left, right = page.execute_script(LOOKS)
    assert left == right
    reached = []
    script = """const e = document.activeElement; const style = getComputedStyle(e);
      return [e.id, style.outlineStyle, style.outlineWidth]"""
    for _ in range(4):
        keys(page, Keys.TAB)
        name, style, width = page.execute_script(script)
        assert (style, float(width[:-2]) >= 2) == ("solid", True)
        reached.append(name)
    assert reached == ["left", "right", "tie", "skip"]
    find(page, "#tie").send_keys(Keys.ENTER)
    wait_for_answered(page, 1)
    assert recorded(device.path) == {duel: (1, 0.5)}
    wait_for_duel(page, "c", "d")  # neither arm is focused after an answer by key
    assert page.execute_script(LOOKS) == [left, left]
    assert page.execute_script(FOCUS) == "question"
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert page.execute_script(outline) == "none"
    keys(page, Keys.TAB)  # the next stop is again the first arm
    focused, right = page.execute_script(LOOKS)
    assert focused != right == left
    assert page.execute_script(FOCUS) == "left"


def test_changes_are_announced_to_screen_readers(page, start):
    device = start()
    device.propose("apples", "pears")
    device.propose("figs", {"image": PICTURE})
    page.draw(0.9)
    page.get(device.url())
    wait_for_duel(page, "apples", "pears")
    live = find(page, "[role=status]")
    assert live.get_attribute("textContent") == "A: apples. B: pears."
    press(page, "left")
    wait_for_duel(page, "figs", "")
    assert live.get_attribute("textContent") == "Answered. Next: A: figs. B: k2."
    press(page, "left")
    wait_for_notice(page, "Nothing to answer now")
    assert live.get_attribute("textContent").startswith("Nothing to answer now.")
    labels = page.execute_script(
        "return [...document.querySelectorAll('section')].map((s) => s.getAttribute('aria-label')"
        " || document.getElementById(s.getAttribute('aria-labelledby'))?.textContent)"
    )
    assert len(labels) == 7
    assert all(labels)


# ---- Undo and skip


@pytest.mark.parametrize("give", [press, click])
def test_the_last_answer_is_undone_and_given_again(give, page, start):
    device = start()
    first = device.propose("a", "b")
    device.propose("c", "d")
    page.draw(0.9)
    page.get(device.url())
    wait_for_duel(page, "a", "b")
    assert not find(page, "#undo").is_enabled()
    give(page, "left")
    wait_for_duel(page, "c", "d")
    assert recorded(device.path) == {first: (1, 1.0)}
    page.execute_script("Math.random = () => 0.1")  # the arms stay where they were
    give(page, "undo")
    assert wait_for_duel(page, "a", "b") == ["a", "b"]
    wait_for_answered(page, 0)
    assert recorded(device.path) == {}
    assert texts(page, "#note") == ["Your last answer was undone."]
    live = find(page, "[role=status]").get_attribute("textContent")
    assert live == "Your last answer was undone. Next: A: a. B: b."
    assert not find(page, "#undo").is_enabled()
    give(page, "right")
    wait_for_answered(page, 1)
    assert list(recorded(device.path).values()) == [(1, 0.0)]
    wait_for_duel(page, "c", "d")
    give(page, "tie")
    wait_for_notice(page, "Nothing to answer now")
    assert texts(page, "#note") == [""]
    wait(lambda: page.execute_script("return choose !== null"))
    give(page, "undo")  # also when no duel is shown
    wait_for_duel(page, "c", "d")
    assert count(page, "#notice[hidden]") == 1
    assert list(recorded(device.path).values()) == [(1, 0.0)]
    assert console_messages(page) == []


def test_undo_when_the_service_was_started_again_and_the_page_was_not(page, start):
    device, (duel, _) = opened(page, start, "ab", "cd")
    press(page, "left")
    wait_for_duel(page, "c", "d")
    device.stop()
    device.start()
    press(page, "undo")
    wait_for_duel(page, "a", "b")
    assert texts(page, "#note") == [UNDONE]
    press(page, "tie")
    wait_for_duel(page, "c", "d")
    assert recorded(device.path) == {f"{duel}~": (1, 0.5)}


@pytest.mark.parametrize("restarted", [False, True])
def test_undo_survives_a_reload(restarted, page, start):
    device, (duel, _) = opened(page, start, "ab", "cd")
    press(page, "left")
    wait_for_duel(page, "c", "d")
    if restarted:
        device.stop()
        device.start()
    page.get("about:blank")
    page.get(device.url())
    wait_for_duel(page, "c", "d")
    wait(find(page, "#undo").is_enabled)
    press(page, "undo")
    wait_for_answered(page, 0)
    assert recorded(device.path) == {}
    assert not find(page, "#undo").is_enabled()
    if restarted:  # texts are deleted with the answer, and only the service's memory had them
        assert texts(page, "#note") == [
            f"{UNDONE} Its pair is no longer known, and is not shown again."
        ]
        assert wait_for_duel(page, "c", "d")
        return
    assert texts(page, "#note") == [UNDONE]
    wait_for_duel(page, "a", "b")
    page.refresh()  # also before it is answered again
    _, right = wait_for_duel(page, "a", "b")
    press(page, "right")
    wait_for_duel(page, "c", "d")
    assert recorded(device.path) == {f"{duel}~": (1, float(right == "a"))}


UNDONE = "Your last answer was undone."


@pytest.mark.parametrize("width", ["wide", "phone"])
def test_the_button_for_undo_has_its_place_from_the_start(width, page, start):
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", WIDTHS[width])
    opened(page, start, "ab", "cd", "ef")
    places = []
    for side in ("left", "undo", "left", "skip", None):
        wait(lambda: texts(page, "#learned:not([hidden])"))
        places.append([box(page, name)["top"] for name in ("#undo", "#progress")])
        if side:
            twice_a_key(page, side)
            wait(lambda: texts(page, "#note")[0].startswith("A press was ignored: "))
            wait_until_ready(page)
    assert np.allclose(places, places[0], atol=0.5)  # pixels


def test_an_uploaded_answer_cannot_be_undone(page, start):
    device, duels = opened(page, start, "ab", "cd", "ef")
    press(page, "tie")
    wait_for_duel(page, "c", "d")
    device.agent.store.cut(0, 1)
    wait(lambda: texts(page, "#note") == [UPLOADED])
    assert not find(page, "#undo").is_enabled()
    press(page, "undo")
    time.sleep(0.3)
    assert recorded(device.path) == {duels[0]: (1, 0.5)}
    press(page, "tie")
    wait_for_duel(page, "e", "f")
    wait(find(page, "#undo").is_enabled)
    page.execute_script("drawStatus = () => {}")  # the page does not know of the upload in time
    device.agent.store.cut(1, 1)
    press(page, "undo")
    wait(lambda: texts(page, "#note") == ["Your last answer can no longer be undone."])
    assert wait_for_duel(page, "e", "f")
    assert recorded(device.path).keys() == set(duels[:2])


UPLOADED = "Your last answer was uploaded. It can no longer be undone."


@pytest.mark.parametrize("give", [press, click])
def test_a_skipped_duel_is_no_answer(give, page, start):
    device, (_, second) = opened(page, start, "ab", "cd")
    give(page, "skip")
    wait_for_duel(page, "c", "d")
    live = find(page, "[role=status]").get_attribute("textContent")
    assert live.startswith("Skipped. Next: A: ")
    assert (texts(page, "#answered"), recorded(device.path)) == (["0"], {})
    give(page, "tie")
    wait_for_notice(page, "Nothing to answer now")
    assert recorded(device.path) == {second: (1, 0.5)}
    assert console_messages(page) == []


# ---- What influences answers


LOOKS = """return ["left", "right"].map((id) => {
  const { backgroundColor, borderColor, outlineStyle, boxShadow, transform } =
    getComputedStyle(document.getElementById(id));
  return JSON.stringify({ backgroundColor, borderColor, outlineStyle, boxShadow, transform });
})"""
FOCUS = "return document.activeElement.id || document.activeElement.tagName"


def with_mouse(page) -> None:
    """Apply the style of devices with a mouse; headless Chromium has none."""
    page.execute_script("""for (const { media } of document.styleSheets[0].cssRules)
      if (media?.mediaText === "(hover: hover)") media.mediaText = "all" """)


def test_neither_arm_is_highlighted_after_a_click(page, start):
    """The mouse stays where the last arm was chosen."""
    from selenium.webdriver import ActionChains

    opened(page, start, "ab", "cd", "ef")
    with_mouse(page)
    left, right = page.execute_script(LOOKS)
    assert left == right
    ActionChains(page).move_to_element(find(page, "#left")).move_by_offset(9, 9).perform()
    hovered, right = page.execute_script(LOOKS)
    assert hovered != right
    ActionChains(page).click().perform()
    wait_for_duel(page, "c", "d")
    assert page.execute_script(LOOKS) == [left, left]
    assert page.execute_script("return document.querySelector('#left').matches(':hover')")
    assert page.execute_script(FOCUS) == "question"
    ActionChains(page).move_by_offset(9, 9).perform()
    assert page.execute_script(LOOKS) == [hovered, left]
    press(page, "right")  # by a key, with the mouse over the left arm
    wait_for_duel(page, "e", "f")
    assert page.execute_script(LOOKS) == [left, left]


# ---- Errors


def test_a_missing_or_wrong_token_is_explained_and_can_be_corrected(page, start):
    device = start()
    for token in ("", "wrong"):
        page.get(device.url(token))
        wait_for_notice(page, "needs the service's token")
        wait_for_notice(page, "Open the address that the service prints when it starts")
        assert cards(page) == []
    page.get(device.url())  # the same page: only the fragment changes
    wait_for_notice(page, "Nothing to answer now")
    device.propose("a", "b")
    wait_for_duel(page, "a", "b")
    assert count(page, "#notice[hidden]") == 1
    assert console_messages(page) == []


def test_answers_and_undoing_are_repeated_while_the_service_is_down(page, start):
    page.draw(0.9)
    device, (duel, _) = opened(page, start, "ab", "cd")
    device.stop()
    press(page, "right")
    wait_for_notice(page, "The service does not answer")
    wait_for_notice(page, "Your answer is kept in this page")
    press(page, "left")  # too late
    wait(
        lambda: (
            texts(page, "#note") == ["A press was ignored: your last answer was still being saved."]
        )
    )
    device.start()
    wait_for_answered(page, 1)
    assert recorded(device.path) == {duel: (1, 0.0)}
    wait_for_duel(page, "c", "d")
    device.stop()
    press(page, "undo")
    wait_for_notice(page, "The service does not answer")
    wait_for_notice(page, "Your last step is kept in this page")
    device.start()
    wait_for_duel(page, "a", "b")
    assert recorded(device.path) == {}
    for number, shown in enumerate(("cd", ""), 1):
        press(page, "tie")
        wait_for_answered(page, number)
        if shown:
            wait_for_duel(page, *shown)
    wait_for_notice(page, "Nothing to answer now")
    device.stop()
    wait_for_notice(page, "No answer is lost")
    device.start()
    wait_for_notice(page, "Nothing to answer now")
    assert console_messages(page) == []


def test_a_duel_that_expired_or_was_answered_elsewhere_is_replaced_by_the_next(page, start):
    device, (duel, _) = opened(page, start, "ab", "cd")
    device.agent.record(duel, "tie")
    press(page, "left")
    wait_for_duel(page, "c", "d")
    assert "answered elsewhere" in texts(page, "[role=status]")[0]
    with contextlib.closing(sqlite3.connect(device.path, timeout=60)) as rows, rows:
        rows.execute("UPDATE proposals SET expires = ?", [time.time() - 1])
    press(page, "left")
    wait_for_notice(page, "Nothing to answer now")
    assert recorded(device.path) == {duel: (1, 0.5)}


# ---- Contents of the page


def synchronize(
    device: Device, theta: list[float], ago: float, *, counted: int = 0, duels: int = 1234
) -> None:
    size, received = len(theta), time.time() - ago
    information = 50 * np.eye(size)[np.triu_indices(size)]
    device.agent.store.synchronize(
        Synchronization(received, 3, counted, duels, np.array(theta), information, {})
    )


def test_progress_and_the_estimate_are_shown(page, start):
    device = start()
    page.get(device.url())
    wait_for_answered(page, 0)
    assert texts(page, "dl > div:not([hidden]) dd") == ["0"]  # no round yet
    wait(lambda: texts(page, "#learned:not([hidden]) #learned-note"))
    assert "Nothing has been learned yet" in texts(page, "#learned-note")[0]
    assert count(page, "#weights:not([hidden]), #favourites:not([hidden])") == 0
    duel = device.agent.propose(np.eye(10)).id
    device.agent.record(duel, "first")
    synchronize(device, [0.0] * 10, 5, duels=0)  # the first exchange of FLDB-ONS: theta = 0
    wait(lambda: "Waiting for the first round" in texts(page, "#learned-note")[0])
    assert texts(page, "dd") == ["1", "0", "never"]
    synchronize(device, [0.1, -2, 0.5, 1, 0, 0.25, -0.001, 0.3, 0.4, -0.2], 200, counted=1)
    wait(lambda: texts(page, "dl > div:not([hidden]) dd") == ["1", "1", "3 minutes ago"])
    wait(lambda: count(page, "#bars li") == 8)
    assert texts(page, "#bars .name") == [f"Feature {i}" for i in (2, 4, 3, 9, 8, 6, 10, 1)]
    margin = 1.96 * 2 / 50**0.5  # the square root of 4 / 50 is the deviation of each weight
    assert texts(page, "#bars .value") == [
        f"{value} ± {margin:.2f}"
        for value in ("−2.00", "+1.00", "+0.50", "+0.40", "+0.30", "+0.25", "−0.20", "+0.10")  # noqa: RUF001
    ]
    said = texts(page, "#bars .unseen")
    assert said[0] == "−2.00, 95% interval from −2.55 to −1.45"  # noqa: RUF001
    assert said[-1] == "+0.10, 95% interval from −0.45 to +0.65"  # noqa: RUF001
    assert "1,234 answers" in texts(page, "#learned-note")[0]
    boxes = page.execute_script("""return [...document.querySelectorAll("#bars li")].map((row) => {
      const [track, bar, line] = [".track", ".bar", ".interval"]
        .map((name) => row.querySelector(name).getBoundingClientRect());
      return [bar.left, bar.right, line.left, line.right]
        .map((x) => (x - track.left) / track.width - 0.5); })""")
    values = [-2, 1, 0.5, 0.4, 0.3, 0.25, -0.2, 0.1]
    most = 2 * (2 + margin)  # the end of the longest interval is at the edge
    expected = [[*sorted([0, v]), v - margin, v + margin] for v in values]
    assert np.allclose(np.multiply(boxes, most), expected, atol=0.02)


@pytest.fixture
def trains(start, tmp_path):
    (tmp_path / "trains.csv").write_text(TRAINS)
    return start(catalogue=read_arms(tmp_path / "trains.csv"))


def test_features_have_names_and_arms_are_ranked(page, trains):
    page.get(trains.url())
    wait(lambda: len(cards(page)) == 2)
    wait(lambda: texts(page, "#learned:not([hidden]) #learned-note"))
    assert count(page, "#favourites:not([hidden]), #weights:not([hidden])") == 0
    shown = {"slow": "price 20, time 5.5", "fast": "price 90, time 2", "Sleep in a bed": ""}
    script = """return [...document.querySelectorAll(".choice")].map((card) =>
      [...card.querySelectorAll(".features:not([hidden]) .feature")]
        .map((row) => row.textContent).join(", "))"""
    assert page.execute_script(script) == [shown[text] for text in cards(page)]
    live = find(page, "[role=status]").get_attribute("textContent")
    for name, text in zip("AB", cards(page), strict=True):
        assert f"{name}: {text}{', ' if shown[text] else ''}{shown[text]}." in live
    with PreferenceAgent(trains.path) as agent:  # prefers short trips, then cheap ones
        duel = agent.propose([[0.0, 1.0], [0.0, -1.0]])
        agent.record(duel.id, "second" if duel.first == 0 else "first")
        arms = trains.options["catalogue"].features
        shares = 100 * agent.against_average(arms)[agent.favourites(arms)]
    wait(lambda: count(page, "#favourites:not([hidden]) li") == 3)
    best = texts(page, "#best .label")
    assert best == ["fast", "slow", "Sleep in a bed"]
    assert texts(page, "#best .words .muted") == ["price 90, time 2", "price 20, time 5.5"]
    assert texts(page, "#favourites-title") == ["Your favourites so far"]
    assert texts(page, "#best .value") == [
        f"{p:.0f}% ({low:.0f}–{high:.0f}%)"  # noqa: RUF001
        for p, low, high in shares
    ]
    assert texts(page, "#best .unseen") == [
        f", preferred in {p:.0f}%, 95% interval from {low:.0f}% to {high:.0f}%"
        for p, low, high in shares
    ]
    assert texts(page, "#bars .name") == ["time"]  # the weight of the price is 0
    note = "Based on your 1 answer. Each answer counts immediately."
    assert texts(page, "#learned-note") == [note]
    synchronize(trains, [-1.0, -10.0], 5)
    wait(lambda: texts(page, "#best .label") == ["slow", "fast", "Sleep in a bed"])
    assert texts(page, "#bars .name") == ["time", "price"]
    assert texts(page, "#favourites-title") == ["Favourites so far"]
    assert "1,234 answers from all devices" in texts(page, "#learned-note")[0]
    assert "from the next round on" in texts(page, "#learned-note")[0]


@pytest.mark.parametrize(("width", "scheme"), [("wide", "light"), ("phone", "dark")])
def test_after_fifty_answers_the_page_has_a_summary(width, scheme, page, trains):
    answered, rng = 0, np.random.default_rng(0)
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", WIDTHS[width])
    emulate(page, "prefers-color-scheme", scheme)
    page.get(trains.url())
    for number in (49, 50):
        with PreferenceAgent(trains.path) as agent:  # prefers short trips
            while answered < number:
                duel = agent.propose(rng.normal(size=(4, 2)))
                agent.record(duel.id, "first" if rng.random() < 0.8 else "second")
                answered += 1
        wait_for_answered(page, number)
        wait(lambda: count(page, "#favourites:not([hidden]) li") == 3)
        if number == 49:
            assert count(page, "#summary:not([hidden])") == 0
    wait(lambda: count(page, "#summary:not([hidden])"))
    assert texts(page, "#summary-title") == ["Thank you for 50 answers"]
    with PreferenceAgent(trains.path) as agent:
        counts = agent.predictions()
    assert counts["answers"] == 50
    favourite, features, predictions = texts(page, "#findings li")
    assert favourite.startswith(f"Your favourite: {texts(page, '#best .label')[0]}. The estimated")
    assert " and ".join(texts(page, "#best .label")[1:]) in favourite
    assert features.startswith(("Clearly preferred: ", "No feature is clearly preferred yet."))
    assert predictions.startswith(
        f"{counts['right']} of the last {counts['predicted']} predictions were right, and about"
        f" {counts['expected']:.0f} were expected."
    )
    assert violations(page) == []
    scroll, seen = page.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert scroll <= seen


def values(**changes: Any) -> dict[str, Any]:
    """Return a status, by default of a device that has answered nothing."""
    status = {"answered": 0, "counted": 0, "sent": 0, "needed": None, "received": None}
    return {**status, "duels": 40, **changes}


PROGRESS = [
    ({}, ""),
    ({"answered": 4}, ""),
    ({"received": 1}, ""),
    ({"answered": 4, "received": 1}, "4 answers for the next round."),
    ({"answered": 1, "needed": 0}, "1 answer for the next round."),
    ({"needed": 3}, "The next round needs answers about 3 different pairs."),
    ({"answered": 2, "needed": 1}, "2 answers for the next round, which needs 1 more different"
     " pair."),
    ({"answered": 41, "needed": 2, "received": 1}, "41 answers for the next round, which needs 2"
     " more different pairs."),
    ({"answered": 9, "sent": 9, "received": 1}, "9 answers in an upload that the server has"
     " not confirmed."),
    ({"answered": 6, "sent": 6, "needed": 3, "received": 1}, "6 answers in an upload that the"
     " server has not confirmed. The upload after this one needs answers about 3 different pairs."),
    ({"answered": 9, "sent": 9, "counted": 9, "received": 1}, "All answers are counted."),
    ({"answered": 9, "sent": 7, "counted": 5, "needed": 4, "received": 1}, "2 answers in an"
     " upload that the server has not confirmed. 2 answers for the next round, which needs 4 more"
     " different pairs."),
    ({"answered": 6, "needed": 3, "minimum": 9, "pairs": 9}, "6 answers for the next round, which"
     " needs 3 more different pairs."),
    ({"answered": 6, "needed": 3, "minimum": 9, "pairs": 6}, "Nothing is sent: an upload needs"
     " answers about 9 different pairs, and these options have only 6."),
]  # fmt: skip
OWN, COMMON = {"own": True, "weights": [0.5]}, {"own": False, "weights": [0.5]}
ZERO, ZEROS = {"own": True, "weights": [0.0]}, {"own": False, "weights": [0.0]}
SOURCES = [
    ({}, ZERO, "Nothing has been learned yet. What you prefer appears here after your first"
     " answers."),
    ({"answered": 2}, ZERO, "No preference is visible in the answers so far."),
    ({"answered": 2, "duels": 0, "received": 1}, ZEROS, "Waiting for the first round. What is"
     " learned from the answers of all devices appears here after it."),
    ({"received": 1}, ZEROS, "No preference is visible in the answers so far."),
    ({"answered": 2}, OWN, "Based on your 2 answers. Each answer counts immediately."),
    ({"received": 1}, OWN, "Based on what other devices have learned. Each of your answers"
     " counts immediately."),
    ({"answered": 1, "received": 1}, OWN, "Based on your 1 answer and on what other devices have"
     " learned. Each answer counts immediately."),
    ({"answered": 1, "received": 1}, COMMON, "Based on 40 answers from all devices, as of the last"
     " round. Your new answers count from the next round on."),
]  # fmt: skip
ESTIMATE = {"weights": [2.0, -1.0, 0.1], "deviations": [0.5, 0.5, 0.5], "own": True,
            "names": ["sweet", "hot", "sour"]}  # fmt: skip
BEST = [{"key": "lassi", "text": "Mango lassi", "preferred": 0.93, "low": 0.874, "high": 0.97},
        {"key": "milk"}, {"key": "water"}, {"key": "tea"}]  # fmt: skip
RIGHT = {"predicted": 47, "right": 31, "expected": 29.6}
FINDINGS = [
    "Your favourite: Mango lassi. The estimated chance that it is preferred to an average option is"
    " 93% (95% interval: 87 to 97%). Next: milk and water.",
    "Clearly preferred: more sweet; less hot.",
    "31 of the last 47 predictions were right, and about 30 were expected. Pairs are"
    " chosen for what their answers teach, and some are hard to predict.",
]
TIMES = {
    **dict.fromkeys((-5, 0, 59), "just now"), **dict.fromkeys((60, 119), "1 minute ago"),
    120: "2 minutes ago", 3599: "59 minutes ago", 3600: "1 hour ago", 7200: "2 hours ago",
    86399: "23 hours ago", 86400: "1 day ago", 3 * 86400: "3 days ago",
}  # fmt: skip
CLAIM = [
    "Your answers stay on this device",
    "Its reports are encrypted, and the server obtains only sums of them with noise, with the help"
    " of a second party, the helper",
    "What the server learns from your reports is differentially private, whatever it asks and"
    " however many devices cooperate with it, as long as the helper follows the protocol and keeps"
    " its keys secret",
    "The same holds for the helper, as long as the server does",
]


def test_texts_by_hand(page, start):
    """On progress, the source of the estimate, times, and what the server can learn."""
    page.get(start().url())

    def call(function: str, *arguments: Any) -> str:
        return page.execute_script(f"return {function}(...arguments)", *arguments)

    for changes, text in PROGRESS:
        assert call("inRounds", values(**changes)) == text
    parts = [("price_eur", 60), ("colour=red", 0), ("colour=black", 1), ("with=out", 0.5)]
    features = [{"name": name, "value": value} for name, value in parts]
    assert call("inLine", features) == "price eur 60, colour black, with: out 0.5"
    assert call("decimalsOf", [0.55, 0.62]) == call("decimalsOf", [5.5, 0.05]) == 2
    for changes, weights, text in SOURCES:
        assert call("sourceOf", values(**changes), weights) == text
    assert call("findings", ESTIMATE, BEST, RIGHT) == FINDINGS
    unclear = {**ESTIMATE, "deviations": [9.0, 9.0, 9.0], "own": False}
    first, second = call("findings", unclear, BEST[:1], {"predicted": 0})
    assert first.startswith("The favourite of all devices: Mango lassi. The estimated")
    assert "Next" not in first
    assert second == "No feature is clearly preferred yet."
    assert call("findings", {**ESTIMATE, "names": None}, [], {"predicted": 0}) == []
    script = "return arguments[0].map((s) => inWords(Date.now() / 1000 - s - 0.5))"
    assert page.execute_script(script, list(TIMES)) == list(TIMES.values())
    assert call("inWords", None) == "never"
    open_sums = {"secure": False, "privacy": None, "sent": 0}
    alone = call("privacyOf", {**open_sums, "received": None})
    wait(lambda: texts(page, "header p") == [alone])
    claim = "the operator of the server can compute what you prefer, and single answers."
    assert alone.endswith(f"{claim} Nothing has been sent so far.")
    for changes in ({"received": 5}, {"received": None, "sent": 9}):
        known = call("privacyOf", {**open_sums, **changes, "minimum": 9})
        assert "only sums over answers about at least 9 different pairs are sent. From" in known
        assert known.endswith(claim)
    spent = {"epsilon": 1.8122, "delta": 1e-6, "max_epsilon": 3, "days": None, "refused": False}
    secure = call("privacyOf", {"secure": True, "privacy": spent})
    assert [sentence.strip() for sentence in re.split(r"\.(?= |$)", secure)] == [
        *CLAIM,
        "For all reports so far, epsilon is 1.81, and your limit is 3 (delta 0.000001)",
        "This includes answers that you delete later",
        "The server also learns which devices took part, and when",
        "",
    ]
    refused = "The last exchange would have exceeded this limit, so this device did not take part."
    for changes, words in [
        ({"days": 30}, "For all reports of the last 30 days, epsilon is 1.81, and your limit is 3"),
        ({"epsilon": 0.0}, "so far, epsilon is 0.00, and"),
        ({"refused": True}, refused),
    ]:
        assert words in call("privacyOf", {"secure": True, "privacy": {**spent, **changes}})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_with_a_vault_the_page_explains_secure_sums(scheme, page, start, tmp_path):
    device = start(node=Node(read_config(configure(tmp_path)), "token-of-the-supernode"))
    device.propose()
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", WIDTHS["phone"])
    emulate(page, "prefers-color-scheme", scheme)
    page.get(device.url())
    wait(lambda: f"{CLAIM[-1]}. For all reports so far" in texts(page, "header p")[0])
    wait_until_ready(page)
    assert violations(page) == []


def test_the_progress_bar_shows_how_many_answers_a_round_needs(page, start):
    device = start()
    for number in range(3):
        device.propose({"text": f"a{number}"}, {"text": f"b{number}"})
    device.agent.store.cut(0, 4)
    page.get(device.url())
    text = "The next round needs answers about 4 different pairs."
    wait(lambda: texts(page, "#waiting") == [text])
    wait(lambda: len(cards(page)) == 2)
    wait_until_ready(page)
    press(page, "left")
    wait_for_answered(page, 1)
    script = "const { value, max, hidden } = document.querySelector('#upload');"
    assert page.execute_script(f"{script} return [value, max, hidden]") == [1, 4, False]
    for _ in range(8):  # one more pair, eight times
        duel = device.agent.store.propose(np.array([1.0, 7.0]), np.nan, expire_after=60.0)
        device.agent.record(duel.id, "first")
    text = "9 answers for the next round, which needs 2 more different pairs."
    wait(lambda: texts(page, "#waiting") == [text])
    assert page.execute_script(f"{script} return [value, max, hidden]") == [2, 4, False]
    page.get(device.url())  # the same after it is loaded again
    wait(lambda: texts(page, "#waiting") == [text])
    assert page.execute_script(f"{script} return [value, max, hidden]") == [2, 4, False]
    device.agent.store.cut(0, 1)
    wait(lambda: "has not confirmed" in texts(page, "#waiting")[0])


WIDTHS = {
    "wide": {"width": 1400, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    "phone": {**PHONE, "width": 390},
}


GOOD = """<!doctype html><html lang="en"><title>A page</title>
<main><h1>A page</h1><p>Text</p><img alt="A dot" src="data:image/gif;base64,AAAA"></main></html>"""


def test_axe_core_finds_violations(browser):  # noqa: F811 - the fixture
    for changed, into, rule in [
        ("", "", None),
        (' lang="en"', "", "html-has-lang"),
        (' alt="A dot"', "", "image-alt"),
        ("<p>", '<p style="color: #ccc; background: #fff">', "color-contrast"),
        ("<p>Text</p>", "<button></button>", "button-name"),
    ]:
        browser.get("data:text/html," + quote(GOOD.replace(changed, into)))
        found = violations(browser)
        assert {line.split(":")[0] for line in found} == ({rule} if rule else set())


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        ("wide", "light"),
        ("phone", "dark"),
        *(
            pytest.param(*each, marks=pytest.mark.exhaustive)
            for each in [("wide", "dark"), ("phone", "light")]
        ),
    ],
)
def test_axe_core_finds_no_violation_in_any_state(width, scheme, page, trains):
    device = trains
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", WIDTHS[width])
    emulate(page, "prefers-color-scheme", scheme)
    found = {}

    def check(state):
        found[state] = violations(page)
        inner = "return [document.documentElement.scrollWidth, innerWidth]"
        scroll, seen = page.execute_script(inner)
        assert scroll <= seen

    page.get(device.url())
    wait(lambda: len(cards(page)) == 2 and count(page, "#learned:not([hidden])"))
    wait_until_ready(page)
    check("first duel")
    device.agent.store.cut(0, 5)
    for number in (1, 2):
        wait_until_ready(page)
        press(page, "left")
        wait_for_answered(page, number)
    wait(lambda: count(page, "#favourites:not([hidden]) li") == 3)
    wait_until_ready(page)
    check("answers and favourites")
    press(page, "undo")
    wait_for_answered(page, 1)
    wait_until_ready(page)
    check("undone")
    device.stop()
    press(page, "left")
    wait_for_notice(page, "The service does not answer")
    check("offline")
    device.start()
    wait_for_answered(page, 2)
    page.execute_script("sessionStorage.clear()")
    wait_for_notice(page, "needs the service's token")
    check("no token")
    assert found == {state: [] for state in found}
    assert len(found) == 5


def test_texts_are_escaped_and_images_have_descriptions(page, start):
    device = start()
    hostile = "<img src=x onerror=\"document.title='owned'\"><script>1</script>\n" + "w" * 500
    device.propose(hostile, {"image": PICTURE})
    device.propose({"image": PICTURE, "text": "seen"}, {"image": "data:image/png;base64,AAAA"})
    page.draw(0.9)
    page.get(device.url())
    assert wait_for_duel(page, hostile, "") == [hostile, ""]
    assert page.title == "Which do you prefer?"
    script = """return [...document.querySelectorAll(".choice img")]
      .map((image) => image.hidden ? null : [image.alt, image.naturalWidth])"""
    assert page.execute_script(script) == [None, ["k2", 40]]
    assert count(page, "img") == 2
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    press(page, "left")
    wait_for_duel(page, "seen", "k2 (cannot be shown)")
    assert page.execute_script(script) == [["", 40], None]
    assert console_messages(page) == []


def test_the_page_sends_requests_only_to_its_own_service_and_no_address_has_the_token(page, start):
    device = start()
    device.propose("a", "b")
    device.propose({"image": PICTURE}, "d")
    page.get(device.url())
    wait_for_duel(page, "a", "b")
    own = f"http://127.0.0.1:{device.port}/"
    assert page.current_url == own
    page.refresh()  # the token stays in the tab
    wait_for_duel(page, "a", "b")
    press(page, "left")
    wait_for_duel(page, "", "d")
    urls = requested(page)
    assert {f"{own}status", f"{own}duels/next"} <= urls
    assert all(url.startswith((own, "data:")) and TOKEN not in url for url in urls)
    page.get(f"{own}docs")
    wait(lambda: count(page, ".opblock") == 16)
    urls = requested(page)
    assert f"{own}openapi.json" in urls
    assert all(url.startswith((own, "data:")) for url in urls)
    assert page.get_log("browser") == []


def requested(page) -> set[str]:
    found = [m["params"] for m in messages(page) if m["method"] == "Network.requestWillBeSent"]
    return {params["request"]["url"] for params in found}


def tap(page, selector: str) -> None:
    """Touch an element near its top left corner."""
    place = box(page, selector)
    point = {"x": place["left"] + 30, "y": place["top"] + 30}
    touch = "Input.dispatchTouchEvent"
    page.execute_cdp_cmd(touch, {"type": "touchStart", "touchPoints": [point]})
    page.execute_cdp_cmd(touch, {"type": "touchEnd", "touchPoints": []})


def box(page, selector: str) -> dict[str, float]:
    script = "return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()"
    return page.execute_script(script, selector)


def test_cards_are_side_by_side_and_below_each_other_on_a_phone(page, start):
    """And neither arm is highlighted after a touch."""
    device = start()
    device.propose("word " * 40, "w" * 300)
    device.propose("c", "d")
    synchronize(device, [0.123456, -2e-7], 5)
    page.draw(0.9)
    page.get(device.url())
    wait_for_duel(page, "word " * 40, "w" * 300)
    left, right = box(page, "#left"), box(page, "#right")
    assert (left["top"], left["height"]) == (right["top"], right["height"])
    assert left["right"] < right["left"]
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        wait(lambda: box(page, "#right")["top"] >= box(page, "#left")["bottom"])
        sizes = page.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
        assert sizes == [360, 360]
        for name in ("left", "right", "tie", "skip"):
            assert min(box(page, f"#{name}")[side] for side in ("width", "height")) >= 48
        assert page.execute_script("return matchMedia('(hover: none)').matches")
        assert texts(page, "kbd")
        assert not find(page, "kbd").is_displayed()
        left, right = page.execute_script(LOOKS)
        assert left == right
        tap(page, "#right")
        wait_for_duel(page, "c", "d")
        assert [y for _, y in recorded(device.path).values()] == [0.0]
        assert page.execute_script(LOOKS) == [left, left]
        assert page.execute_script(FOCUS) != "right"
        tap(page, "#skip")
        wait_for_notice(page, "Nothing to answer now")
        assert min(box(page, "#undo")[side] for side in ("width", "height")) >= 48
        wait(lambda: page.execute_script("return choose !== null"))
        tap(page, "#undo")
        wait_for_answered(page, 0)
    finally:
        page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_sufficient_in_both_color_schemes(scheme, page, start):
    emulate(page, "prefers-color-scheme", scheme)
    page.get(start().url())
    script = """const probe = document.createElement("i"); document.body.append(probe);
      return arguments[0].map((name) => {
        probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; })"""
    names = ["text", "muted", "accent", "control", "more", "less", "card", "page", "hover"]
    *inks, control, more, less, card, ground, hover = page.execute_script(script, names)
    assert all(contrast(ink, under) >= 4.5 for ink in inks for under in (card, ground, hover))
    assert all(contrast(line, card) >= 3 for line in (control, more, less))
    assert contrast(control, ground) >= 3
    shown = "return getComputedStyle(document.body).backgroundColor"
    assert page.execute_script(shown) == ground
    assert (contrast(ground, "rgb(0, 0, 0)") < 3) == (scheme == "dark")


def test_no_animation_with_reduced_motion(page, start):
    opened(page, start, "ab")
    script = "return getComputedStyle(document.querySelector('.pair')).animationName"
    for wish, name in (("no-preference", "arrive"), ("reduce", "none")):
        emulate(page, "prefers-reduced-motion", wish)
        assert page.execute_script(script) == name
