"""The `muster` command: a group whose commands are imported only when they run.

Every failure that a user can cause is one line on standard error; the exit status says which kind:
0 done, 1 the answer is no, 2 bad input, 130 interrupted.
"""

import contextlib
import os
import sys
from importlib import import_module

import click

from muster.errors import MusterError, UnknownName

# Command -> the module of muster.cli that holds it under the same name.
COMMANDS = {
    "models": "the big table of open LLMs; one model in full",
    "params": "every component of a model: formula, count, share",
    "chips": "the hardware table, with sources",
    "plan": "how to train a model on a cluster: layout, step time, memory, cost, and why",
    "verify": "the plan's step, compiled by the real TPU compiler, on a machine without TPUs",
    "tune": "the plan's layout, step choices and flags, chosen by the TPU compiler",
    "inspect": "the same reading of any scheduled TPU program",
    "train": "carry out a plan on the devices that are there",
    "import": "a Hugging Face folder to a checkpoint",
    "export": "a checkpoint to a folder that Hugging Face loads",
    "eval": "loss and perplexity of a model, or its logits",
    "validate": "predictions against published, measured runs",
}

# Commands that do not live in a module of their own name: where, and under what name.
HOMES = {
    "import": ("convert", "import_"),
    "export": ("convert", "export"),
    "eval": ("eval", "eval_"),
}

BAD_INPUT = 2
INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands, in the order in which people meet them."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, name = HOMES.get(cmd_name, (cmd_name, cmd_name))
        command = getattr(import_module(f"muster.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command; an unknown name is answered with the nearest ones."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise UnknownName("command", args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any of them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="muster", message="muster %(version)s")
def cli() -> None:
    """Plan the training of an LLM on TPU pods or GPU clusters before anyone has the chips."""


def run(arguments: list[str]) -> int:
    """Run the command line.

    Returns:
        The exit status: 0 done, 1 the answer is no, 2 bad input, 130 interrupted.
    """
    if sys.stdout is None:
        if sys.stderr is None:
            return BAD_INPUT  # both closed by the caller: there is nobody to tell
        return _fail("standard output is closed, so no answer can be given", BAD_INPUT)
    status: object = 0
    try:
        status = cli.main(arguments, prog_name="muster", standalone_mode=False)
        sys.stdout.flush()
    except MusterError as error:
        status = _fail(str(error), error.exit_status)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help())
    except click.ClickException as error:
        status = _fail(error.format_message(), BAD_INPUT)
    except (click.Abort, KeyboardInterrupt):
        status = _fail("interrupted", INTERRUPTED)
    except (BrokenPipeError, SystemExit):
        # The reader (head, less) has what it wanted; click and rich answer that by exiting.
        _discard_output()
    except MemoryError:
        status = _fail("this machine's memory does not suffice for it", BAD_INPUT)
    except OSError as error:
        _discard_output()
        status = _fail(f"cannot write the answer: {error.strerror or error}", BAD_INPUT)
    return status if isinstance(status, int) else 0


def _discard_output() -> None:
    """Keep the interpreter from flushing again what cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, status: int) -> int:
    one_line = " ".join(message.split())
    with contextlib.suppress(OSError, ValueError):  # standard error may be closed or full
        click.echo(f"muster: {one_line}", err=True)
    return status
