#!/usr/bin/env bash
# Prints the directory that has prometheus and promtool: where they are installed,
# or else a cache, which it fills from Debian's package. The package is unpacked,
# not installed: nothing is started, and nothing outside the cache changes.
set -euo pipefail

if installed=$(command -v promtool) && command -v prometheus >/dev/null; then
	dirname "$installed"
	exit
fi
cache=${XDG_CACHE_HOME:-$HOME/.cache}/node-termination-handler/prometheus
if [[ -x $cache/usr/bin/promtool && -x $cache/usr/bin/prometheus ]]; then
	echo "$cache/usr/bin"
	exit
fi
for tool in apt-get dpkg-deb; do
	command -v "$tool" >/dev/null || {
		echo "prometheus and promtool are missing, and so is $tool to fetch them: install Prometheus 2.42 or later" >&2
		exit 1
	}
done

work=$(mktemp -d)
chmod 755 "$work" # apt-get downloads as a user of its own
trap 'rm -rf "$work"' EXIT
fetch() { (cd "$work" && apt-get download prometheus >&2); }
fetch || {
	# There are no package lists, or old ones: to renew them takes root.
	root=()
	((EUID == 0)) || root=(sudo -n)
	"${root[@]}" apt-get update >&2
	fetch
} || {
	echo "Debian's package prometheus cannot be fetched: install Prometheus 2.42 or later, or run apt-get update as root" >&2
	exit 1
}
dpkg-deb --extract "$work"/prometheus_*.deb "$work/tree"
"$work/tree/usr/bin/promtool" --version >&2
mkdir -p "$(dirname "$cache")"
rm -rf "$cache"
mv "$work/tree" "$cache"
echo "$cache/usr/bin"
