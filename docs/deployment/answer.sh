#!/bin/sh
# Answers duels of a device from a shell, through its preference service. Requires only curl.
#
#   answer.sh URL TOKEN_FILE ARMS [COUNT [COMMAND]]
#   answer.sh http://127.0.0.1:8377 /var/lib/fldb/duels.db.token drinks.csv
#
# ARMS        CSV file with the header arm,FEATURE,... and one arm per line: its key (letters,
#             digits, . _ -), then its features, for example: tea,0.1,0.9
# COUNT       number of duels; 0 (default): no limit
# COMMAND     called with two keys, prints first, second or tie; default: ask on the terminal
#
# Prints "NUMBER ID" for each answer that is stored on the device's disk. Requests without a reply
# are repeated. An answer that is sent twice counts once, because the service identifies a duel by
# its id.
set -eu

if [ $# -lt 3 ]; then
  echo "usage: answer.sh URL TOKEN_FILE ARMS [COUNT [COMMAND]]" >&2
  exit 2
fi
url=$1 arms=$3 count=${4:-0} command=${5:-ask}
token=$(cat "$2")
case $token in
  '' | *[!A-Za-z0-9._~+/=-]*)
    echo "answer.sh: no token in $2" >&2
    exit 1
    ;;
esac
reply=$(mktemp)
trap 'rm -f "$reply"' EXIT
trap 'exit 1' INT TERM

# call PATH BODY: send a POST request, and repeat it until the service replies. Sets $reply.
call() {
  while :; do
    # Pass the token through a pipe: other users can read the arguments of a command.
    status=$(printf 'header = "Authorization: Bearer %s"\n' "$token" \
      | curl --config - --silent --output "$reply" --write-out '%{http_code}' --max-time 60 \
        --header 'Content-Type: application/json' --data "$2" "$url$1") || status=000
    case $status in
      200) return 0 ;;
      000 | 5??) sleep 1 ;; # service not reachable or busy
      *)
        echo "answer.sh: $1: $status $(cat "$reply")" >&2
        return 1
        ;;
    esac
  done
}

# field NAME: print the value of a string or a number in $reply.
field() {
  sed -n 's/.*"'"$1"'": *"\{0,1\}\([^",}]*\).*/\1/p' "$reply"
}

ask() {
  [ ! -t 3 ] || printf '1) %s   2) %s   0) I cannot say: ' "$1" "$2" >&2
  read -r choice <&3
  case $choice in
    1) echo first ;;
    2) echo second ;;
    0) echo tie ;;
    *) ask "$1" "$2" ;;
  esac
}
exec 3<&0 # the standard input of this script: a terminal or a pipe

# offer: print up to eight random arms as {"features": [[...], ...], "keys": ["...", ...]}.
offer() {
  awk -F , -v seed="$(od -An -N4 -tu4 /dev/urandom)" '
    BEGIN { srand(seed) }
    NR > 1 && NF > 1 { line[++n] = $0 }
    END {
      for (i = 1; i <= n && i <= 8; i++) {
        j = i + int(rand() * (n - i + 1)); swap = line[i]; line[i] = line[j]; line[j] = swap
        m = split(line[i], word, ",")
        keys = keys (i > 1 ? "," : "") "\"" word[1] "\""
        row = word[2]
        for (k = 3; k <= m; k++) row = row "," word[k]
        features = features (i > 1 ? "," : "") "[" row "]"
      }
      printf "{\"features\":[%s],\"keys\":[%s]}", features, keys
    }' "$arms"
}

done=0
while [ "$count" -eq 0 ] || [ "$done" -lt "$count" ]; do
  call /duels "$(offer)"
  id=$(field id) one=$(field first_key) other=$(field second_key)
  # The first arm is the favourite of the estimate. Random order avoids a position bias.
  if [ "$(($(od -An -N1 -tu1 /dev/urandom) % 2))" -eq 0 ]; then
    preferred=$("$command" "$one" "$other")
  else
    preferred=$("$command" "$other" "$one" | sed 's/first/2/; s/second/first/; s/2/second/')
  fi
  call "/duels/$id/answer" "{\"preferred\":\"$preferred\"}"
  echo "$(field number) $id"
  done=$((done + 1))
done
