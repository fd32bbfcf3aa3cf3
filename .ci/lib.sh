# shellcheck shell=bash
#
# What the scripts of this folder share; sourced, never run.

set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
: "${PG_CONFIG:=/usr/lib/postgresql/15/bin/pg_config}"
export PG_CONFIG

unset MAKEFLAGS MFLAGS MAKELEVEL
# A developer's PGHOST, PGOPTIONS, ... would send a suite elsewhere.
for name in "${!PG@}"; do
	case $name in PG_CONFIG | PGCTLTIMEOUT) ;; *) unset "$name" ;; esac
done

say() { printf '==== %s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# A folder of our own in $work, also for the temporary files of what we start;
# gone at the end together with whatever still runs in it, also after Ctrl-C.
make_work() {
	work=$(mktemp -d "${TMPDIR:-/tmp}/idem.XXXXXX")
	trap clean_work EXIT
	mkdir "$work/tmp"
	export TMPDIR=$work/tmp
}

clean_work() {
	local left tries=0
	cd /
	while left=$(lives_in_work); [ -n "$left" ]; do
		# QUIT is an immediate shutdown: the server removes its shared memory.
		# shellcheck disable=SC2086 # a list
		if [ $tries -lt 50 ]; then kill -QUIT $left; else kill -KILL $left; fi 2>/dev/null || true
		tries=$((tries + 1))
		sleep 0.1
	done
	rm -rf "$work"
}

lives_in_work() {
	local p
	for p in /proc/[0-9]*; do
		case $(readlink "$p/cwd") in "$work"/*) echo "${p#/proc/}" ;; esac
	done
}

# The sources without anything built, so that a run never touches the tree and
# never links objects made with other flags.
copy_tree() {
	mkdir "$1"
	tar -C "$repo" -c --exclude=./.git --exclude='*.o' --exclude='*.so' --exclude='*.bc' \
		--exclude=./tmp_check --exclude=./tmp_install --exclude=./results . | tar -x -C "$1"
}

# The settings of a throw-away server with its socket in folder $1.
server_conf() {
	cat "$repo/test/regress.conf" - <<-EOF
		fsync = off
		jit = off
		listen_addresses = ''
		log_checkpoints = off
		log_line_prefix = '%m [%p] %q%d %a '
		unix_socket_directories = '$1'
	EOF
}

# PostgreSQL refuses to run as root.
as_postgres() {
	if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi
}

# Where what takes long to fetch or build is kept between runs.
# shellcheck disable=SC2034 # used where this is sourced
cache=${IDEM_MATRIX_CACHE:-${XDG_CACHE_HOME:-/var/tmp}/idem_action-matrix}

# For building item $1 of the cache: others wait, and find it then.
lock_cache() {
	mkdir -p "$cache"
	exec 9> "$cache/$1.lock"
	flock 9
}

# An apt of its own in folder $1 that knows nothing of this machine but the
# mirror and the keyring.  The rest are its sources: deb or deb-src, then the
# suite.  Leaves in the array "apt" the options that make apt-get use it.
private_apt() {
	local dir=$1 here mirror
	shift
	# shellcheck source=/dev/null
	here=$(. /etc/os-release && echo "$VERSION_CODENAME")
	# shellcheck disable=SC2016 # the dollars are apt's
	mirror=$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
		awk -v here="$here" '$1 == here && !seen++ { print $2 }')
	[ -n "$mirror" ] || die "this machine's apt has no source for $here"
	mkdir -p "$dir/lists/partial" "$dir/archives/partial"
	: > "$dir/status"
	printf "%s [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror %s main\n" "$@" > "$dir/sources.list"
	apt=(-qq -o "Dir::Etc::sourcelist=$dir/sources.list" -o Dir::Etc::sourceparts=/dev/null
		-o "Dir::State::lists=$dir/lists" -o "Dir::State::status=$dir/status"
		-o "Dir::Cache=$dir" -o "Dir::Cache::archives=$dir/archives"
		-o APT::Install-Recommends=false -o APT::Sandbox::User=root)
	apt-get "${apt[@]}" update
}
