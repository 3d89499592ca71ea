#!/bin/sh
# Two hosts on one machine: network namespaces with a cable between them. They train one pipeline together over Gloo,
# then a rank of one host fails, then the cable is cut; both hosts must end and tell the cause.
# Run: sudo sh tests/two-hosts/run.sh (needs the right to make network namespaces; a current build)
set -eu

here=$(cd "$(dirname "$0")/../.." && pwd)
a=pipewright-a-$$
b=pipewright-b-$$
logs=$(mktemp -d)
remove() {
  ip netns delete "$a" 2>/dev/null || true
  ip netns delete "$b" 2>/dev/null || true
  rm -rf "$logs"
}
trap remove EXIT
trap 'exit 130' INT TERM

ip netns add "$a"
ip netns add "$b"
ip link add cable netns "$a" type veth peer name cable netns "$b"
ip -n "$a" address add 10.77.0.1/24 dev cable
ip -n "$b" address add 10.77.0.2/24 dev cable
for host in "$a" "$b"; do
  ip -n "$host" link set lo up
  ip -n "$host" link set cable up
done

# start SCENE PORT SECONDS: two ranks on each host; the exit codes are left in $logs.
start() {
  node=0
  for host in "$a" "$b"; do
    (
      code=0
      ip netns exec "$host" node "$here/packages/cli/bin/pipewright.js" run -n 2 --nnodes 2 --node-rank "$node" \
        --master-addr 10.77.0.1 --master-port "$2" --secret-file "$logs/$1.secret" --timeout "$3" "$here/tests/two-hosts/train.ts" "$1" \
        >"$logs/$1.$node" 2>&1 || code=$?
      echo "$code" >"$logs/$1.$node.code"
    ) &
    node=$((node + 1))
  done
}

# expect SCENE CODE TEXT: how both hosts must have ended, and what both must have said.
expect() {
  for node in 0 1; do
    echo "--- $1, host $node, exit code $(cat "$logs/$1.$node.code")"
    cut -c 1-200 "$logs/$1.$node"
    [ "$(cat "$logs/$1.$node.code")" = "$2" ] || { echo "two-hosts: exit code $2 was expected"; exit 1; }
    [ -z "$3" ] || grep -q "$3" "$logs/$1.$node" || { echo "two-hosts: '$3' was expected"; exit 1; }
  done
}

start train 29500 60
wait
expect train 0 ''
grep -q 'largest difference to plain training' "$logs/train.1"

start fail 29510 60
wait
expect fail 1 'rank 3 failed: rank 3 broke on purpose'

start endless 29520 5
until grep -q 'under way' "$logs/endless.1" 2>/dev/null; do sleep 0.1; done
ip -n "$a" link set cable down
wait
expect endless 1 'failed'

echo 'two-hosts: both hosts trained together, failed together, and noticed that the cable was cut'
