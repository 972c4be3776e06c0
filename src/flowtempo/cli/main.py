"""Entry point: one file per command, imported only when it is called so that `--help` is quick."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence

import flowtempo
from flowtempo.errors import UserError

COMMANDS = {
    "demo": "the whole job on scikit-learn's digits, in a few minutes",
    "measure": "bracket the target variance of a data set over log-SNR -> profile.json",
    "design": "turn a profile into a timestep density -> density.json",
    "inspect": "show where densities, recipes and runs look, over t and log-SNR",
    "export": "say a density in another trainer's words: flags, Python or a table",
    "train": "train a model, drawing times from any density -> a run folder",
    "probe": "measure a run's gradients and losses over the noise axis -> probe.json",
    "generate": "generate images from a run's checkpoint",
    "evaluate": "Frechet distance of generated images, with a card that says how it was computed",
    "report": "one self-contained HTML page from profiles, densities and runs",
    "recipes": "list the recipes that ship: experiments, and methods to lay over them",
}

USAGE = """\
usage: flowtempo COMMAND [...]

Measure where on the noise axis the training signal of a flow or diffusion model is noisiest,
turn it into a timestep density, train with it, and see whether it helped.

commands:
{commands}

examples:
  flowtempo demo
  flowtempo measure fashion-mnist --output profile.json --plot profile.png
  flowtempo design profile.json --output density.json
  flowtempo train fashion-mnist --run runs/designed --timesteps.target density.json

`flowtempo COMMAND --help` explains one command; `flowtempo --version` prints the version.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The words after `flowtempo`; the process's own when None.

    Returns:
        0 when done, 2 for a person's mistake (one line on stderr), 128 + N when signal N stopped it.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(
            USAGE.format(commands="\n".join(f"  {name:<10}{text}" for name, text in COMMANDS.items())), end=""
        )
        return 0
    if words[0] == "--version":
        print(f"flowtempo {flowtempo.__version__}")
        return 0
    name, *rest = words
    try:
        if name not in COMMANDS:
            raise UserError(f"unknown command {name!r}; the commands are {', '.join(COMMANDS)}")
        from flowtempo.cli.parsing import call

        return call(importlib.import_module(f"flowtempo.cli.{name}"), name, rest)
    except UserError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    except OSError as error:
        # A missing file, a full disk or a folder without permission is the person's to mend.
        if error.strerror is None:
            raise
        where = f": {error.filename}" if error.filename else ""
        print(f"error: {error.strerror}{where}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
