"""flowtempo's densities in other people's trainers: flags, stand-ins for their functions, tables."""

from flowtempo.interop.convention import (
    Convention,
    convert_time,
    convert_velocity,
    convert_velocity_model,
)
from flowtempo.interop.diffusers import TimestepDensity, sigma_table
from flowtempo.interop.draws import Draws
from flowtempo.interop.export import Export, Options, Target
from flowtempo.interop.families import Fit
from flowtempo.interop.flow_matching import from_scheduler, to_scheduler
from flowtempo.interop.guided_diffusion import StepSampler
from flowtempo.interop.subject import Subject, load_proposal, read_subject
from flowtempo.interop.table import save_table
from flowtempo.interop.targets import TARGETS, export
from flowtempo.interop.transport import RepaTimes, TransportSample

__all__ = [
    "TARGETS",
    "Convention",
    "Draws",
    "Export",
    "Fit",
    "Options",
    "RepaTimes",
    "StepSampler",
    "Subject",
    "Target",
    "TimestepDensity",
    "TransportSample",
    "convert_time",
    "convert_velocity",
    "convert_velocity_model",
    "export",
    "from_scheduler",
    "load_proposal",
    "read_subject",
    "save_table",
    "sigma_table",
    "to_scheduler",
]
