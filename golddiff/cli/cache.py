"""``golddiff cache``: list and delete the files kept between runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from golddiff.cli.command import argument, command, option
from golddiff.cli.options import JsonPath
from golddiff.cli.terminal import say, write_json
from golddiff.system.errors import ArgumentError
from golddiff.system.folders import delete_folder
from golddiff.system.units import byte_size


@dataclass(frozen=True)
class _CacheOptions:
    names: list[str] | None = argument("Names of cache folders; default: all.", None)
    clear: bool = option("Delete these folders.", False)
    json: JsonPath = None


@command
def cache(options: _CacheOptions) -> None:
    """List or delete the files kept between runs; golddiff rebuilds them when needed.

    For example:

      golddiff cache
      golddiff cache --clear photos-1f3a99d2c0b1e7aa
    """
    from golddiff.store.cache import cache_folder, entries

    folder, found = cache_folder(), entries()
    wanted = set(options.names or [])
    if unknown := wanted - {entry.path.name for entry in found}:
        raise ArgumentError(f"names: {min(unknown)!r} is not in {folder}; golddiff cache lists it")
    chosen = [entry for entry in found if not wanted or entry.path.name in wanted]
    for entry in chosen:
        if options.clear:
            delete_folder(entry.path)
        day = datetime.fromtimestamp(entry.used, UTC).date()
        say(f"{byte_size(entry.bytes):>10}  {day}  {entry.path.name}  {entry.what}")
    total = byte_size(sum(entry.bytes for entry in chosen))
    say(f"{'deleted' if options.clear else 'in all'} {total} in {folder}")
    rows = [{"name": e.path.name, "what": e.what, "bytes": e.bytes, "used": e.used} for e in chosen]
    write_json(options.json, {"folder": str(folder), "cleared": options.clear, "entries": rows})
