// Package ui holds the components of the admin pages: layout, tables, forms, charts,
// icons, code blocks and formats of times and numbers. Its components get all that
// they show as arguments: they read no data and know no page.
//
// Components show every string as text, never as markup. Text from outside goes
// through [Visible], which bounds it and escapes what could mislead; a whole body
// goes through [BodyBlock]. Components use no inline style, script or event handler,
// which the policy of the pages refuses.
//
// What JavaScript adds is requested by attributes: data-copy, data-tick, data-row,
// data-live-list, data-ago. Its source is assets/src. TestGallery renders the
// components on one page, testdata/gallery.html.
package ui
