"""Tests that run in the child process. They measure and compare, but never judge."""
