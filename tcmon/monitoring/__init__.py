"""PEP 669 events in, switches out: all that differs between Python versions about `sys.monitoring`."""
