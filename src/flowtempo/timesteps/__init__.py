"""Where on [0, 1] the times of a training step are drawn, and the weights that come with them."""

from flowtempo.timesteps.proposal import Proposal, Spacing, Times, WeightCheck

__all__ = ["Proposal", "Spacing", "Times", "WeightCheck"]
