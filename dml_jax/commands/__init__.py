"""The commands, one module each: `parser` returns its options, `execute` runs it; invalid input is
a UserError."""
