"""A molecule whose atoms are coloured by their shares of a prediction, drawn by RDKit."""

import base64
from collections.abc import Sequence

from parallel_epochs.pipeline.run.errors import install_command

# Colours of atoms that raise and that lower the score; people with colour blindness tell them apart.
RAISES, LOWERS = (0.0, 0.447, 0.698), (0.835, 0.369, 0.0)
WIDTH, HEIGHT = 480, 320


def picture(smiles: str, shares: Sequence[float]) -> str:
    """Return an image element of a molecule, and a line on its colours; or a line on why there is none, as HTML.

    Args:
        smiles: the molecule.
        shares: of the score, of each atom in the order of the SMILES.
    """
    try:
        from rdkit import Chem, RDLogger
        from rdkit.Chem.Draw import rdMolDraw2D
    except ImportError as error:
        return f"<p>The molecule is not drawn: RDKit is missing ({error.name}): {install_command('molecules')}</p>"
    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined] # the page says it
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or molecule.GetNumAtoms() != len(shares):
        return "<p>The molecule is not drawn, since RDKit reads another one in its SMILES.</p>"
    most = max(map(abs, shares), default=0.0)
    colours = {
        atom: tuple(
            1 - abs(share) / most * (1 - part) for part in (RAISES if share > 0 else LOWERS)
        )
        for atom, share in enumerate(shares)
        if most > 0
    }
    drawing = rdMolDraw2D.MolDraw2DSVG(WIDTH, HEIGHT)
    rdMolDraw2D.PrepareAndDrawMolecule(
        drawing,
        molecule,
        highlightAtoms=list(colours),
        highlightBonds=[],
        highlightAtomColors=colours,
    )
    drawing.FinishDrawing()
    image = base64.b64encode(drawing.GetDrawingText().encode()).decode()
    return (
        f'<p><img alt="the molecule" width="{WIDTH}" height="{HEIGHT}" src="data:image/svg+xml;base64,{image}"></p>'
        f"<p>Blue atoms raise the score and orange atoms lower it; the strongest colour stands for a share of "
        f"{most:.3g}.</p>"
    )
