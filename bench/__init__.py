"""Benchmarks, one question a file: python -m bench.NAME. They are run by ./dev bench."""
