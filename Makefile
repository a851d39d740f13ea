# make demo, make test, make check: each does all the set-up it needs, and is quick when that is done.
# TORCH_INDEX=URL takes torch from another package index, such as that of its builds without CUDA.

PYTHON ?= $(shell for each in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$each; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
WHEELS := .cache/wheels
# Tests wait often, so there are two workers more than cores; an idle one takes tests from busy ones.
WORKERS ?= $(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 2)))
SHARED := -n $(WORKERS) --dist worksteal
PYTEST_OPTIONS ?=
TORCH := torch==2.13.0
# Where an image sets this, each program that a test starts compiles our modules again.
unexport PYTHONDONTWRITEBYTECODE

FRAMEWORKS := .cache/frameworks
RSYNCS := .cache/rsyncs
BENCH := .cache/bench
WORKS ?=

# What make test takes of the three rings in tests/.
SHORT := not extended or picked

.PHONY: demo test test-all test-user check bench reference pictures docs dist matrix clean system-demo system-test

demo: system-demo $(VENV)/stamp-demo
	$(BIN)/remote-tool demo

TEST_NEEDS := system-test $(VENV)/stamp-test $(WHEELS)/stamp $(FRAMEWORKS)/stamp $(RSYNCS)/stamp

# What fails runs once more, alone, to see whether it fails again; red stays red.
AGAIN = { status=$$?; if [ $$status = 1 ]; then echo "Once more, alone:"; \
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none --maxfail 10; fi; exit $$status; }

test: $(TEST_NEEDS)
	$(BIN)/python -m pytest $(SHARED) -m '$(SHORT)' $(PYTEST_OPTIONS) || $(AGAIN)

test-all: $(TEST_NEEDS)
	$(BIN)/python -m pytest $(SHARED) $(PYTEST_OPTIONS) || $(AGAIN)

# The quick tests as an ordinary user: root makes one for it, and removes it after.
test-user: system-test $(VENV)/stamp-test $(RSYNCS)/stamp
	$(BIN)/python tools/test_as_user.py $(SHARED) -m 'not slow' $(PYTEST_OPTIONS)

# Unit and promises on each Python of this machine; PYTEST_OPTIONS replaces both folders.
matrix: system-test $(RSYNCS)/stamp
	@tools/matrix $(SHARED) -m '$(SHORT)' $(or $(PYTEST_OPTIONS),tests/unit tests/promises)

check: $(VENV)/stamp-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/shellcheck $$(find remote_tool -name '*.sh') tools/matrix tools/need tools/rsyncs
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.floors --check
	$(BIN)/zizmor --offline --quiet .github
	$(BIN)/python tools/dependencies.py

# Side by side with doing it by hand and with labml_remote; WORKS='sync-one run-8' chooses, BENCH_OPTIONS adds to it.
bench: system-test $(VENV)/stamp-bench $(BENCH)/stamp
	$(BIN)/python -m benchmarks --labml $(CURDIR)/$(BENCH)/bin/python $(BENCH_OPTIONS) $(WORKS)

reference: $(VENV)/stamp-test
	$(BIN)/python -m remote_tool.cli.reference
	$(BIN)/python -m remote_tool.cli.manual
	$(BIN)/python -m remote_tool.cli.skill
	$(BIN)/python -m remote_tool.cli.schema
	$(BIN)/python -m remote_tool.config.reference
	$(BIN)/python -m remote_tool.workspace.reference
	$(BIN)/python -m tests.reliability
	$(BIN)/python -m tests.floors

# The same commit gives the same bytes, wherever and whenever it is built.
dist: $(VENV)/stamp-test
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m hatchling build
	@cd dist && sha256sum *

# The pictures of the documents, from real runs on this machine.
pictures: $(VENV)/stamp-test
	$(BIN)/python -m tools.record_terminal

# The site of the documents, in site/; every link and anchor is checked.
docs: $(VENV)/stamp-docs
	$(BIN)/python tools/site.py

clean:
	rm -rf $(VENV) .cache build dist site

# Programs of the system. Where we may install none, a line says what is missing; tests that need it are skipped.
system-demo:
	@tools/need rsync=rsync ip=iproute2

system-test:
	@tools/need rsync=rsync ip=iproute2 sshd=openssh-server fish=fish tcsh=tcsh zsh=zsh busybox=busybox ps=procps \
		strace=strace nft=nftables iperf3=iperf3 mpiexec.hydra=mpich faketime=faketime unshare=util-linux podman=podman crun=crun tmux=tmux mkfs.ext4=e2fsprogs groff=groff-base slurmctld=slurm-wlm munged=munge \
		$(shell test ! -x /usr/bin/python3 || /usr/bin/python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or make … PYTHON=ITS_PATH"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || tools/need --strict $(notdir $(PYTHON))-venv
	$(PYTHON) -m venv $(VENV)

$(VENV)/stamp-torch: $(BIN)/python
	$(BIN)/pip install --disable-pip-version-check $(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	@touch $@

$(VENV)/stamp-demo: pyproject.toml $(VENV)/stamp-torch
	$(BIN)/pip install --disable-pip-version-check -e '.[sample]'
	@touch $@

$(VENV)/stamp-test: pyproject.toml $(VENV)/stamp-torch
	$(BIN)/pip install -q --disable-pip-version-check -e '.[test,check]'
	@touch $@

$(VENV)/stamp-bench: pyproject.toml $(VENV)/stamp-test
	$(BIN)/pip install -q --disable-pip-version-check -e '.[bench]'
	@touch $@

$(VENV)/stamp-docs: pyproject.toml $(BIN)/python
	$(BIN)/pip install -q --disable-pip-version-check -e '.[docs]'
	@touch $@

# labml_remote has needs of its own, so it gets an environment of its own.
$(BENCH)/stamp: $(VENV)/stamp-test
	$(BIN)/python -m venv $(BENCH)
	$(BENCH)/bin/pip install -q --disable-pip-version-check labml-remote==0.1.1
	@touch $@

# Frameworks need much, so they get an environment of their own, which takes torch and the rest from that of the tests.
# Tests of what the index lacks are skipped.
PURELIB := import sysconfig; print(sysconfig.get_path("purelib"))
$(FRAMEWORKS)/stamp: pyproject.toml $(VENV)/stamp-test
	$(BIN)/python -m venv $(FRAMEWORKS)
	$(BIN)/python -c '$(PURELIB)' > "$$($(FRAMEWORKS)/bin/python -c '$(PURELIB)')/tests.pth"
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["frameworks"], sep="\n")' | \
		while read -r each; do $(FRAMEWORKS)/bin/pip install -q --disable-pip-version-check "$$each" \
			|| echo "not installed, so its tests are skipped: $$each"; done
	@touch $@

# Tests of syncs run with every rsync that the machine can have, here and on the server.
$(RSYNCS)/stamp: tools/rsyncs
	@tools/rsyncs $(RSYNCS)
	@touch $@

# The journey test installs the sample's packages on its servers from these files, without the network.
$(WHEELS)/stamp: sample/requirements.txt $(VENV)/stamp-torch
	@mkdir -p $(WHEELS)
	$(BIN)/pip download -q --disable-pip-version-check -d $(WHEELS) $(TORCH) -r sample/requirements.txt \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	@touch $@
