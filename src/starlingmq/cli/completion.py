"""``starlingmq completion``: the script that lets a shell complete commands and options."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from starlingmq.cli.app import COMPLETION, PROGRAM

ZSH: Final = f"""\
#compdef {PROGRAM}

_{PROGRAM}() {{
  eval $(env _TYPER_COMPLETE_ARGS="${{words[1,$CURRENT]}}" {COMPLETION}=complete_zsh {PROGRAM})
}}

# zsh runs a file of its fpath as the body of the function at the first key; otherwise the script was sourced.
if [ "$funcstack[1]" = "_{PROGRAM}" ]; then
  _{PROGRAM} "$@"
else
  compdef _{PROGRAM} {PROGRAM}
fi"""
"""With typer's script, a file of fpath completes nothing at the first key."""


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def command(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="Shell that reads the script: bash, zsh or fish.")],
) -> None:
    """Print the script that completes commands and options in a shell: `source <(starlingmq completion bash)`."""
    if shell is Shell.zsh:
        print(ZSH)
        return
    # It names a shell, and runs none.
    script = get_completion_script(prog_name=PROGRAM, complete_var=COMPLETION, shell=shell.value)  # nosec B604
    print(script)
