"""``fairmean run``: one run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fairmean.errors import UserError
from fairmean.experiments.keys import described
from fairmean.terminal.words import parser_for, settings_of, takes_training

if TYPE_CHECKING:
    from fairmean.engine.ranks import World

_ABOUT = """\
Train one method on one federation, and evaluate every client.

Settings come from a config file, from key=value words, or from both; a word overrides the file. What is not set has
its default. 'fairmean new my.toml' writes a commented config."""
_EXAMPLES = (
    "fairmean run                                            the defaults, on embedded images",
    "fairmean run method.name=qffl method.q=0.5 attack.name=random_class train.rounds=50",
    "fairmean run my.toml train.lr=0.05",
    "fairmean run data.name=mine.npz attack.name=none        your own data, nobody poisoned",
)


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "run", "train one method", _ABOUT, _EXAMPLES)
    parser.epilog = f"{parser.epilog}\n\nkeys and their defaults:\n{described()}"
    takes_training(parser)
    parser.set_defaults(call=_run, ranks=True)


def _run(arguments: argparse.Namespace, world: World | None) -> None:
    from fairmean.experiments.config import gather, parse_one, to_toml

    tree = gather(*settings_of(arguments.settings))
    if "grid" in tree:
        raise UserError("this config has a [grid]: it is a comparison; use 'fairmean compare' with it")
    config = parse_one(tree)

    from fairmean.engine.ranks import ALONE
    from fairmean.experiments.building import build_simulator
    from fairmean.experiments.folder import to_json
    from fairmean.experiments.identity import Sources, folder_of, resolve
    from fairmean.experiments.listing import flat
    from fairmean.experiments.run import run_resolved
    from fairmean.terminal import tables
    from fairmean.terminal.progress import Live

    world = world or ALONE
    sources = Sources()
    config = resolve(config, sources)
    if arguments.dry_run:
        simulator = build_simulator(config, sources=sources)
        sizes = simulator.federation.sizes
        if arguments.json:
            facts = {"folder": str(folder_of(config)), "parameters": len(simulator.w), "sizes": sizes.tolist()}
            print(to_json({**facts, "settings": dict(flat(config.to_dict()))}))
            return
        print(to_toml(config))
        print(
            f"# {len(simulator.w):,} parameters; client sizes {sizes.min()} … {sizes.max()}; folder {folder_of(config)}"
        )
        return
    with Live(arguments.quiet or arguments.json or world.rank > 0) as live:
        result = run_resolved(config, live.run, world, sources)
    if world.rank:
        return
    if arguments.json:
        print(to_json(result.summary | {"folder": str(result.folder)}))
    else:
        print(tables.run(result))
