"""One-line mutants of the sources, and the tests that notice them: ./dev mutate."""
