#!/usr/bin/env bash
# Prints the path of Chromium: of the one that is installed, or else of Debian's package, which it
# installs. Unlike Prometheus it needs some sixty libraries, so that it cannot just be unpacked.
set -euo pipefail

found() {
	local name
	for name in chromium chromium-browser chromium-headless-shell google-chrome; do
		command -v "$name" && return
	done
	return 1
}

found && exit
command -v apt-get >/dev/null || {
	echo "Chromium is missing, and so is apt-get to install it: install Chromium or Google Chrome" >&2
	exit 1
}
root=()
((EUID == 0)) || root=(sudo -n)
# Without fonts there is no text to look at.
packages=(chromium fonts-dejavu-core)
install() { "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}" >&2; }
install || {
	# There are no package lists, or old ones.
	"${root[@]}" apt-get update >&2
	install
} || {
	echo "Debian's package chromium cannot be installed: install Chromium or Google Chrome" >&2
	exit 1
}
found
