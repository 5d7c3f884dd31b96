"""The tests themselves, as the child process runs them. They measure and compare; they never judge."""
