"""Code object in, loops with roles and evidence out. Pure: no torch, no events, no files."""
