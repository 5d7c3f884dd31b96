"""Orphans: processes, folders and homes on nodes that belong to nobody."""
