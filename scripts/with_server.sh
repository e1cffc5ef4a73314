#!/usr/bin/env bash
# Starts a server on a free port, runs a command with its address as last argument, and stops the server in order.
#
#   with_server.sh MUSER [FLAG...] -- COMMAND [ARGUMENT...]
#
# The exit code is the command's, or 1 if the server does not start, or does not end as it should.
set -euo pipefail

flags=()
muser=$1
shift
while [[ $1 != -- ]]; do
    flags+=("$1")
    shift
done
shift

log=$(mktemp)
"$muser" serve --port 0 "${flags[@]}" 2>"$log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -f "$log"' EXIT

# A model that is shipped or cached is there within seconds; the limit only keeps a broken server from hanging this.
address=
for _ in $(seq 600); do
    address=$(sed -n 's/^muser: listening on \(http[^ ]*\).*/\1/p' "$log")
    [[ -n $address ]] && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
done
if [[ -z $address ]]; then
    echo "the server did not start:" >&2
    cat "$log" >&2
    exit 1
fi

status=0
"$@" "$address" || status=$?
kill -TERM "$server"
ended=0
wait "$server" || ended=$?
if ((status == 0 && ended != 0)); then
    echo "the server ended with $ended:" >&2
    tail -20 "$log" >&2
    exit 1
fi
exit "$status"
