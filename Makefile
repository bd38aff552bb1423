VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test slow lint bench docs

# One set-up for every target: made when it is not there, made again when the requirements change.
$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "setting up $(VENV): one to three minutes, once"
	@python3 -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,test]'
	@touch $@

demo: $(VENV)/.ready
	$(BIN)/fewbit demo

# Two processes of one thread each: tests are small, and threads that wait for each other would cost more than they do.
test: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

slow: $(VENV)/.ready
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python bench/data.py
	$(BIN)/python bench/minilm.py
	$(BIN)/python bench/eager.py
	$(BIN)/python bench/onnx_run.py
	$(BIN)/python bench/checkpoint.py
	$(BIN)/python bench/tuning.py
	$(BIN)/python bench/sparsity.py onnx --write
	$(BIN)/python bench/sparsity.py detection --write
	$(BIN)/python bench/sparsity.py segmentation --write

docs: $(VENV)/.ready
	$(BIN)/python docs/make_findings.py
