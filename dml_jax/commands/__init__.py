"""The commands, one module per command: `parser` defines its options, `execute` runs it."""
