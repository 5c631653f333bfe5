"""A small OTLP receiver that keeps the last traces in memory, so that a laptop needs no Jaeger to look at one."""
