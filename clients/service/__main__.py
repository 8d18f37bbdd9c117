"""`python -m clients.service --store duels.db`: the duels of a device over HTTP."""

from __future__ import annotations

if __name__ == "__main__":  # before what takes long to import
    try:
        from fldb_flower.system import startup
    except ImportError:
        import fldb_flower

        found = f"error: {fldb_flower.__file__} shadows fldb-flower's package 'fldb_flower'"
        raise SystemExit(f"{found}: rename it") from None
    startup.begin()
    startup.require("python -m clients.service", "service", "fastapi", "uvicorn", "fastapi_offline")

from clients.service.app import main

if __name__ == "__main__":
    main()
