# shellcheck shell=bash disable=SC2034,SC2154
#
# Other majors of PostgreSQL, for matrix and upgrade; sourced, never run.  Each
# is Debian's own packages, unpacked once into a folder under
# $IDEM_MATRIX_CACHE; what is in there runs by chroot, hence as root.

# shellcheck source=.ci/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The majors' own flags but those that this machine's gcc does not know.
cflags="-O2 -g -Wall -Wmissing-prototypes -Wpointer-arith -Wdeclaration-after-statement -Werror \
-fno-strict-aliasing -fwrapv -fexcess-precision=standard"

# Unpacks major $1 into $cache/$1, which is there only when it is complete.
unpack() {
	local major=$1 new=$cache/$1.new pgtap=$1 version='' suites deb
	[ ! -d "$cache/$major" ] || return 0
	case $major in
		17) suites=(deb trixie) ;;
		18) suites=(deb forky) ;;
		19) suites=(deb sid deb experimental) pgtap=18 ;;
		*) die "no recipe for PostgreSQL $major" ;;
	esac
	say "fetching PostgreSQL $major"
	rm -rf "$new"
	private_apt "$new/apt" "${suites[@]}"
	# apt takes nothing from experimental unless told the version
	[ "$major" != 19 ] || version="=$(apt-cache "${apt[@]}" policy postgresql-19 | awk '$1 == "Candidate:" { print $2 }')"
	apt-get "${apt[@]}" -y -d install "postgresql-$major" "libpq5$version" \
		dash coreutils libc-bin base-files perl-base tzdata sed
	(
		cd "$new/apt/archives"
		apt-get "${apt[@]}" download "postgresql-server-dev-$major" "libpq-dev$version" "postgresql-$pgtap-pgtap"
		dpkg -x base-files_*.deb "$new"	# first: it has the links /bin, /lib, ...
		for deb in *.deb; do
			case $deb in
				base-files_* | libllvm* | perl-modules* | libperl*) ;;
				*) dpkg -x "$deb" "$new" ;;
			esac
		done
	)
	rm -r "$new/apt"
	if [ "$pgtap" != "$major" ]; then
		cp "$new/usr/share/postgresql/$pgtap/extension"/pgtap* "$new/usr/share/postgresql/$major/extension/"
	fi
	getent passwd root postgres > "$new/etc/passwd"
	getent group root postgres > "$new/etc/group"
	mkdir -p "$new/dev/shm" "$new/tmp"
	chmod 1777 "$new/dev/shm" "$new/tmp"
	# the zones' folder links to it, and pg_timezone_names reads all of that
	cp --dereference /etc/localtime "$new/etc/localtime"
	mknod -m 666 "$new/dev/null" c 1 3
	mknod -m 666 "$new/dev/urandom" c 1 9
	chroot "$new" ldconfig
	mv "$new" "$cache/$major"
}

# Builds a copy of the tree in $work/tree, warnings are errors, and installs it
# into the folder of major $1.
build_major() {
	local root=$cache/$1 bin=/usr/lib/postgresql/$1/bin
	copy_tree "$work/tree"
	cd "$work/tree"
	say "building for PostgreSQL $1"
	rm -f "$root/usr/share/postgresql/$1/extension"/idem_action* "$root/usr/lib/postgresql/$1/lib"/idem_action*
	# a pg_config that speaks of the folder as this machine sees it
	printf '#!/bin/sh\nchroot "%s" %s/pg_config "$@" | sed "s,^/usr/,%s/usr/,"\n' "$root" "$bin" "$root" > "$work/pg_config"
	chmod +x "$work/pg_config"
	make -s -j"$(nproc)" with_llvm=no PG_CONFIG="$work/pg_config" CFLAGS="$cflags"
	make -s with_llvm=no PG_CONFIG="$work/pg_config" install > /dev/null
}

# Runs a function with set -e in force, which it is not inside an if; leaves what
# it returned in $status.
# shellcheck disable=SC2034 # used where this is sourced
try() {
	set +e
	(set -e; "$@")
	status=$?
	set -e
}
