"""How `make test` and `make test-all` run the tests: phases, progress, costs and the sum at the end."""
