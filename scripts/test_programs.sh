#!/bin/sh
# Installs the programs that tests drive, where apt-get and the right to use it are there. Without one of them its tests
# say why they are skipped. No service is started.
PATH="$PATH:/usr/sbin"

missing=""
for each in tmux:tmux nginx:nginx-light redis-server:redis-server promtool:prometheus; do
  command -v "${each%%:*}" >/dev/null || missing="$missing ${each#*:}"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "Missing:$missing; the tests that need them are skipped."
  exit 0
fi

# Debian starts a service as it's installed, unless this says no.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
fi

install() {
  # Word splitting is meant: a package a word.
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing
}

echo "Installing$missing for the tests."
{ install || { apt-get update -q && install; }; } >/dev/null 2>&1 ||
  echo "Can't be installed:$missing; the tests that need them are skipped."
