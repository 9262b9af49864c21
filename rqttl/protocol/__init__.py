"""Everything that goes over the wire, as values: keys, encodings, scripts and their calls. No I/O here."""
