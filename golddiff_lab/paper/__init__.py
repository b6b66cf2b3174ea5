"""The paper's tables and figures: one file each, our figures beside the paper's."""
