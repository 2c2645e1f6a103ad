"""The commands, one module each: `parser` gives its options, `execute` runs it; invalid input is a UserError."""
