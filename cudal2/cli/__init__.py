"""The command line: parse, call one function of the library, print. The only place that prints."""
