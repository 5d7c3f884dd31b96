"""The node plane: drivers, placement, gateway, agent. Plain Python: no Django, no database."""
