"""The released Kueue controller on a cluster with our manager; `make test-clients` runs it."""
