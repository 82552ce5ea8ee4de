"""Alternatives to this project that a user has, each a contender (armillary/lab/bench/contender.h)."""
