"""The command line: composes a run from conf/ and arguments, without torch, checks it, and prints the help."""
