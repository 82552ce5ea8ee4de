"""Benchmarks, one question a file: python3 armillary/lab/bench NAME. They are run by ./dev bench NAME."""
