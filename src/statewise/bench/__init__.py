"""Benchmarks: leaves that time the ops beside their peers. The byte floor is counted before anything is measured."""
