# Releases, packages and images, and their tests. Packages and images need root: debootstrap makes clean Debian systems in build/debian.

.PHONY: build release test-upgrade deb test-deb image test-image wheels test-wheels

build: setup-run ## source, compiled wheel and bill of materials (CycloneDX) in dist/
	$(PY) -m build --no-isolation
	@$(PY) scripts/bill_of_materials.py

release: setup-run ## version, artefacts with checksums and bill of materials, notes and tag (VERSION=0.2.0; ARGS=--dry-run changes nothing; root)
	$(PY) scripts/release.py $(VERSION) $(ARGS)

test-upgrade: ready-pure ## nodes and a cluster of three of earlier releases, built from the history, are upgraded; downgrades are refused
	$(PY) -m pytest -q tests/upgrade $(ARGS)

deb: ## Debian packages of the compiled program in dist/, made in a clean Debian (root)
	scripts/build-deb

test-deb: deb ready-pure ## install, start, upgrade and purge them on a Debian with systemd in a container (root)
	STARLINGMQ_PURE=1 $(PY) -m pytest -q -m shipped tests/packaging/test_deb.py $(ARGS)

image: ## container image in dist/ without a container engine, of the Debian packages (root)
	scripts/build-image

# The image of the Dockerfile is built too, on a Debian in place of its base image.
test-image: image ready-pure .stamps/podman .stamps/kubernetes ## run both images, the compose file and the Kubernetes pods with podman, and manifests and chart in a Kubernetes built from its Go modules: kill, lose a volume, upgrade (root)
	STARLINGMQ_PURE=1 $(PY) -m pytest -q -m shipped tests/packaging/test_image.py tests/packaging/test_compose.py tests/packaging/test_pods.py tests/packaging/test_kubernetes.py $(ARGS)

# A quarter of an hour the first time.
.stamps/kubernetes: tests/kubernetes/go.mod scripts/kubernetes
	@scripts/kubernetes build/kubernetes
	@touch $@

.stamps/podman: requirements/podman.txt scripts/system-packages .stamps/installed
	@PYTHON=$(PYTHON) scripts/system-packages containers
	$(INSTALL) --require-hashes --requirement requirements/podman.txt
	@touch $@

wheels: .stamps/venv ## compiled wheels in dist/ for each Python of 3.11 to 3.13 that is here
	scripts/build-wheels

test-wheels: wheels ready-pure ## install them with pip, uv and pipx, and run a broker of each
	STARLINGMQ_PURE=1 $(PY) -m pytest -q -m shipped tests/packaging/test_wheels.py $(ARGS)
