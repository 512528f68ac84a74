"""XINT8, then AdaRound with the parameters of Quark's preset."""

from common import arguments, run

from quantmill.quark.quantization.config import Config, get_default_config
from quantmill.quark.quantization.config.custom_config import DEFAULT_ADAROUND_PARAMS

quant_config = get_default_config("XINT8")
quant_config.include_fast_ft = True
quant_config.extra_options["FastFinetune"] = DEFAULT_ADAROUND_PARAMS


def main(given: list[str] | None = None) -> dict[str, float]:
    return run(Config(global_quant_config=quant_config), arguments(__doc__, given))


if __name__ == "__main__":
    main()
