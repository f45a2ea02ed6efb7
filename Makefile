# The tasks of `run` for those who have make: `make test` is `bash run test`.
.PHONY: help demo build test test-cpp test-python test-conformance test-sanitize lint format tidy
help demo build test test-cpp test-python test-conformance test-sanitize lint format tidy:
	@bash run $@
