"""The one way to write files: aside, put on disk, renamed, and through no link.

Whatever Regard writes goes through this room. What is written is whole or absent: a full disk, a
crash or Ctrl-C leaves what stood there before. An error names the path and the reason.

A file of Regard's own (`write_text`, `writing`, `append`) is never written through a link: the
link is replaced, or refused, and what it points to stays as it is. A file that the user named
(`output`, `whole_output`, `write_output`) may be a link to a regular file, whose content is then
replaced, unless the link is inside a run.

`reading` is the one way to read what may be anything: a pipe, a device, or far too large.
"""

from regard.files.disk import create, disk_faults_told, move, remove, sync
from regard.files.log import append
from regard.files.output import MANIFEST, output, whole_output, write_output
from regard.files.whole import (
    ASIDE,
    copy_folder,
    new_folder,
    remove_whole,
    write_bytes,
    write_text,
    writing,
)

__all__ = [
    "ASIDE",
    "MANIFEST",
    "append",
    "copy_folder",
    "create",
    "disk_faults_told",
    "move",
    "new_folder",
    "output",
    "remove",
    "remove_whole",
    "sync",
    "whole_output",
    "write_bytes",
    "write_output",
    "write_text",
    "writing",
]
