"""Orphans: processes, folders and homes on nodes that have no owner."""
