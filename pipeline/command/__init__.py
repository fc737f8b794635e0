"""The command line: composes a run from conf/ and arguments, checks it, prints the help. A run is composed without torch."""
