#!/bin/sh
# Redis with an append-only file, for `usring crash`: redis.sh setup|run|check
# FSYNC: the value of appendfsync (default: always).
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
socket=$work/socket

# Starts the server and waits until it has read its files.
start() {
    redis-server --port 0 --unixsocket "$socket" --dir "$USRING_CRASH_STATE" --save '' \
        --appendonly yes --appendfsync "${FSYNC:-always}" >"$work/log" 2>&1 &
    server=$!
    tries=0
    until [ "$(redis-cli -s "$socket" ping 2>/dev/null)" = PONG ]; do
        tries=$((tries + 1))
        if [ $tries -gt 3000 ] || ! kill -0 $server 2>/dev/null; then
            echo "the server does not start: $(tail -n 1 "$work/log")"
            exit 1
        fi
        sleep 0.01
    done
}

start
case $1 in
setup)
    redis-cli -s "$socket" set key0 value0 >/dev/null
    kill $server
    ;;
run)
    for number in 1 2 3 4 5 6; do
        [ "$(redis-cli -s "$socket" set key$number value$number)" = OK ] && echo $number
    done
    kill $server
    ;;
check)
    status=0
    last=$(tail -n 1 "$USRING_CRASH_OUTPUT")
    for number in $(seq 1 "${last:-0}"); do
        if [ "$(redis-cli -s "$socket" get key$number)" != value$number ]; then
            echo "key$number is missing"
            status=1
        fi
    done
    kill -9 $server
    wait $server 2>/dev/null
    exit $status
    ;;
esac
wait $server
