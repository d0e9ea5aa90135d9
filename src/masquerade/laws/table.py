"""All laws, in their order."""

from masquerade.laws.engines import engines_agree, order_does_not_matter
from masquerade.laws.law import Law
from masquerade.laws.messages import (
    counted_bytes_are_encoded_bytes,
    densities_stay_within_the_limit,
)
from masquerade.laws.purity import functions_are_pure
from masquerade.laws.settings import (
    neutral_settings_give_fedavg,
    settings_survive_the_configuration,
)
from masquerade.laws.states import saved_runs_continue, unsampled_clients_are_untouched
from masquerade.laws.steps import padding_changes_nothing, traced_steps_serve_every_round

LAWS: tuple[Law, ...] = (
    functions_are_pure,
    engines_agree,
    counted_bytes_are_encoded_bytes,
    order_does_not_matter,
    neutral_settings_give_fedavg,
    unsampled_clients_are_untouched,
    saved_runs_continue,
    densities_stay_within_the_limit,
    traced_steps_serve_every_round,
    settings_survive_the_configuration,
    padding_changes_nothing,
)
