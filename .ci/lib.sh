# What .ci/run and .ci/deep share. They source it at the root of the repository.

# Where install_go and others put programs, for all clones of the repository.
tools=${XDG_CACHE_HOME:-$HOME/.cache}/service-tools
mkdir -p "$tools"
export PATH="$tools:$PATH" SERVICE_TEST_TOOLS="$tools" npm_config_prefer_offline=true

# What tests and checks may need: name | commands | what is not checked without it. A command whose
# Debian package has another name is written command=package. Names match harness.Tool and
# harness.Unavailable. Some entries are not commands, see has; they have no package: command=.
requirements='
browser     | chromium node=nodejs npm                       | the admin UI in a browser
clients     | node=nodejs npm                                | generated clients
bash        | bash                                           | text that a shell reads back
clocks      | linux-amd64=                                   | failovers with clock jumps
curl        | curl                                           | the commands of the API reference
firefox     | firefox-esr                                    | the admin UI in Firefox
haproxy     | haproxy openssl                                | two installations behind HAProxy
netns       | root= linux= ip=iproute2 nft=nftables          | egress from a network namespace
nginx       | nginx= openssl                                 | the service behind nginx
node        | node=nodejs                                    | the verification example for Node.js
openssl     | openssl bash                                   | the signing curl command
owner       | root=                                          | key files of other users
packages    | systemd-analyze=systemd dpkg-deb=dpkg ar=binutils | the systemd unit and the packages
powercut    | root= linux= mount mkfs.ext4=e2fsprogs setpriv=util-linux | power cuts
promtool    | promtool=                                      | the syntax of the alert rules
python3     | python3                                        | the verification example for Python
s3          | s3=                                            | replicas in a real bucket
shells      | zsh fish groff                                 | shell completion and the manual page
sqlite3     | sqlite3                                        | a database opened by another process
sslscan     | sslscan                                        | TLS, seen by sslscan
strace      | strace                                         | system calls and failing disks
tmpfs       | root= linux= mount                             | full disks
walkthrough | curl jq                                        | the walk-through in README.md
'

# rows prints the rows of the given requirements, without the blanks around columns.
rows() {
  local name
  for name in "$@"; do
    sed -n "s/ *| */|/g; /^$name|/p" <<<"$requirements"
  done
}

# has reports whether a command, or a resource that requirements lists as one, is available.
has() {
  case $1 in
    root) [ "$(id -u)" = 0 ] ;;
    linux) [ "$(uname -s)" = Linux ] ;;
    linux-amd64) [ "$(uname -sm)" = "Linux x86_64" ] ;;
    s3) [ -x "$tools/versitygw" ] && [ -x "$tools/litestream" ] ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# install_packages installs missing packages for the given requirements, as root on Debian. It
# installs each package separately, so that a failure does not stop the others.
install_packages() {
  local commands command packages="" package
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
  while IFS='|' read -r _ commands _; do
    for command in $commands; do
      has "${command%=*}" || packages="$packages ${command#*=}"
    done
  done < <(rows "$@")
  [ -n "${packages// /}" ] || return 0
  apt-get update -qq >/dev/null 2>&1 || true
  for package in $packages; do
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >/dev/null 2>&1 ||
      echo "apt-get could not install: $package"
  done
}

# check COMMAND... runs a tool that install_go has installed, unless the installation failed.
check() {
  if has "$1"; then "$@"; else echo "NOT CHECKED: $1, which could not be installed"; fi
}

# install_go PROGRAM PACKAGE@VERSION builds a program into $tools, once per version of the program
# and of Go.
install_go() {
  local built="$tools/$1-${2##*@}-$(go env GOVERSION)"
  if [ ! -x "$built" ]; then
    GOBIN="$built.new" GOFLAGS="" go install "$2" >/dev/null 2>&1 || return 0
    mv "$built.new/$1" "$built"
    rmdir "$built.new"
  fi
  ln -sf "$built" "$tools/$1"
}

# install_s3 builds the S3 server and Litestream's command, at the versions locked with the tests.
install_s3() {
  local lock="test/replica/testdata/tools/go.sum"
  cmp -s "$lock" "$tools/s3.sum" && has s3 && return
  (cd "$(dirname "$lock")" && CGO_ENABLED=0 GOFLAGS= go build -o "$tools/" \
    github.com/benbjohnson/litestream/cmd/litestream github.com/versity/versitygw/cmd/versitygw) 2>/dev/null &&
    cp "$lock" "$tools/s3.sum" || true
}

# install_extracted PROGRAM PACKAGE extracts a program from a Debian package that would start a
# server if installed.
install_extracted() {
  local dir
  has "$1" && return
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
  dir=$(mktemp -d)
  (cd "$dir" && { apt-get update -qq && apt-get download -qq -o APT::Sandbox::User=root "$2" &&
    dpkg-deb -x "$2"_*.deb . && install -m 0755 usr/*bin/"$1" "$tools/$1"; } >/dev/null 2>&1) || true
  rm -rf "$dir"
}

# need REQUIREMENT... installs what the requirements need, and makes their tests fail instead of
# being skipped. It reports what cannot be checked on this machine.
need() {
  local name commands what command missing require=""
  install_packages "$@"
  case " $* " in *" s3 "*) install_s3 ;; esac
  case " $* " in *" promtool "*) install_extracted promtool prometheus ;; esac
  case " $* " in *" nginx "*) install_extracted nginx nginx ;; esac
  while IFS='|' read -r name commands what; do
    missing=""
    for command in $commands; do
      has "${command%=*}" || missing="$missing ${command%=*}"
    done
    if [ -z "$missing" ]; then
      require="$require,$name"
    else
      echo "NOT CHECKED: $what (needs$missing)"
    fi
  done < <(rows "$@")
  export SERVICE_TEST_REQUIRE="${require#,}"
}
